"""What our client lets go of once its user has: sessions that ended, and those that were merely dropped."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tinkex
from tinkex import types
from tinkex.client.portal import portal
from tinkex.server.options import Times

from .in_process import MODEL, WAIT, InProcess, in_process

HELD = 0.05
"""Seconds a poll is held."""
PARAMS = types.SamplingParams(max_tokens=3, seed=1)
ROOT = Path(__file__).parent.parent.parent


def alive() -> Counter[str]:
    """How many objects of the client's own there are in this process, and tasks of its loop."""

    async def tasks() -> int:
        await asyncio.sleep(2 * HELD)  # the last questions are answered
        return len(asyncio.all_tasks())

    gc.collect()
    running = portal().run(tasks())
    gc.collect()
    found = Counter(
        f"{type(each).__module__}.{type(each).__qualname__}"
        for each in gc.get_objects()
        if str(type(each).__module__).startswith(("tinkex.client", "tinkex.net"))
    )
    found["tasks"] = running
    return found


def life(server: InProcess) -> tinkex.ServiceClient:
    """A session in which something of everything is done."""
    client = server.client()
    trainer = client.create_lora_training_client(MODEL, rank=4)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
    )
    for _ in range(2):
        passed, stepped = (
            trainer.forward_backward([datum], "cross_entropy"),
            trainer.optim_step(types.AdamParams()),
        )
        passed.result(WAIT)
        stepped.result(WAIT)
    prompt = types.ModelInput.from_ints([5, 6])
    plain = client.create_sampling_client(base_model=MODEL)
    for sampler in (plain, trainer.save_weights_and_get_sampling_client()):
        for future in [sampler.sample(prompt, 1, PARAMS) for _ in range(3)]:
            future.result(WAIT)
    path = trainer.save_state("end").result(WAIT).path
    server.rest().delete_checkpoint_from_tinker_path(path).result(WAIT)
    return client


def compare(folder: Path, close: bool) -> None:
    """Print what there is more of after some sessions."""
    with in_process(folder, times=Times(hold=HELD)) as server:

        def once() -> None:
            client = life(server)
            if close:
                client.close("success").result(WAIT)

        for _ in range(2):
            once()
        before = alive()
        for _ in range(4):
            once()
        after = alive()
        print({name: count - before[name] for name, count in after.items() if count > before[name]})


@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
def test_sessions_of_a_client_leave_nothing_behind(tmp_path: Path, close: bool):
    # In a process of its own: what clients of other tests do is not counted.
    code = (
        f"from {__name__} import compare; compare(__import__('pathlib').Path({str(tmp_path)!r}), {close})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "{}"
