"""A backup taken while its server trains: served elsewhere, a user's program goes on as if nothing were."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tinkex
from tinkex.server.state_check import check
from tinkex.testing import make_tiny_model

from .serving import KEY, MODEL, Served, clean_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("torch", "transformers")),
        reason="the engine is not installed",
    ),
]
HALF = 5


def data(step: int) -> list[Any]:
    tokens = [(7 * step + n) % 50 + 3 for n in range(24)]
    return [
        tinkex.Datum(
            tinkex.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": [1.0] * 23}
        )
    ]


def train(client: Any, steps: range) -> list[float]:
    losses = []
    for step in steps:
        passed = client.forward_backward(data(step), "cross_entropy")
        client.optim_step(tinkex.AdamParams(learning_rate=1e-2)).result()
        losses.append(passed.result().metrics["loss:sum"])
    return losses


def command(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tinkex", "state", *words],
        env=clean_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def saved(state: Path, run: str) -> bytes:
    (path,) = state.glob(f"checkpoints/{run.replace(':', '%3A')}/training/end-*/adapter.safetensors")
    whole = path.read_bytes()
    return whole[8 + int.from_bytes(whole[:8], "little") :]


def test_a_run_goes_on_from_a_backup_with_the_very_same_weights(tmp_path: Path):
    server = Served(tmp_path / "server", make_tiny_model(tmp_path / "model"))
    server.start()
    try:
        with tinkex.ServiceClient(base_url=server.url, api_key=KEY) as service:
            expected = service.create_lora_training_client(MODEL, rank=4, seed=7)
            losses = train(expected, range(2 * HALF))
            expected.save_state("end").result()
            client = service.create_lora_training_client(MODEL, rank=4, seed=7)
            found = train(client, range(HALF))
            other = service.create_lora_training_client(MODEL, rank=8, seed=3)
            enough, begun = threading.Event(), threading.Event()

            def keep_busy() -> None:
                step = 0
                while not enough.is_set():
                    train(other, range(step, step + 1))
                    other.save_state(f"at-{step % 3}", overwrite=True).result()
                    begun.set()
                    step += 1

            busy = threading.Thread(target=keep_busy)
            busy.start()
            try:
                begun.wait(60)
                command("export", str(server.state), str(tmp_path / "backup.tar"))
                assert check(server.state).findings == []
            finally:
                enough.set()
                busy.join()
            server.kill("server")
            command("import", str(tmp_path / "backup.tar"), str(tmp_path / "restored"))
            server.state = tmp_path / "restored"
            server.start()
            found += train(client, range(HALF, 2 * HALF))
            client.save_state("end").result()
            assert found == losses
            assert saved(server.state, client.model_id) == saved(server.state, expected.model_id)
        server.stop()
        assert check(server.state).findings == []
    finally:
        server.destroy()
