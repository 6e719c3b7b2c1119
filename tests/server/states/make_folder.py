"""Makes the state folder of a server killed in the middle of things, to be kept for later versions.

    python tests/server/states/make_folder.py NAME.tar.xz

Run it with the version whose folder is to be kept; later versions must go on with it. The archive holds the
folder and, in `expected.json`, what the same version did when it went on itself.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

KEY = "tml-of-an-earlier-version"
MODEL = "tiny/model"
TINY = {"layers": 1, "hidden": 32, "vocab": 512}
PATIENCE = 60.0
STEPS = 5
"""Two more than are in the newest snapshot."""


class Server:
    """A server on a state folder, asked with plain requests."""

    def __init__(self, state: Path, model: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = [
            *("--json", "serve", "--model", f"{MODEL}={model}", "--state", str(state), "--port", str(port)),
            *("--device", "cpu", "--threads", "1", "--snapshot-steps", "3", "--time", "hole=60"),
        ]
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("TINKER", "TINKEX"))
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tinkex", *words],
            env={**kept, "TINKER_API_KEY": KEY, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RuntimeError(self.process.communicate()[1].decode()[-2000:])

    def post(self, route: str, body: Any) -> Any:
        """What the server answers."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/{route}",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-api-key": KEY},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def result(self, ticket: Any) -> Any:
        """What became of an operation."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                found = self.post("retrieve_future", {"request_id": ticket["request_id"]})
            except urllib.error.HTTPError as error:
                if error.code != 408:
                    raise
            else:
                if found.get("type") != "try_again":
                    return found
        raise TimeoutError(ticket)

    def train(self, model: str, seq: int, step: int) -> float:
        """A pass and an optimizer step; the loss."""
        passed = self.post("forward_backward", pass_body(model, seq, step))
        stepped = self.post("optim_step", step_body(model, seq + 1))
        assert "error" not in self.result(stepped)
        return float(self.result(passed)["metrics"]["loss:sum"])

    def kill(self) -> None:
        """End it as by `kill -9`."""
        self.process.kill()
        self.process.communicate()


def pass_body(model: str, seq: int, step: int) -> dict[str, Any]:
    """A pass over a few tokens."""
    tokens = [(7 * step + n) % 50 + 3 for n in range(12)]
    inputs = {
        "target_tokens": {"data": tokens[1:], "dtype": "int64", "shape": [11]},
        "weights": {"data": [1.0] * 11, "dtype": "float32", "shape": [11]},
    }
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": tokens[:-1]}]},
        "loss_fn_inputs": inputs,
    }
    given = {"data": [datum], "loss_fn": "cross_entropy"}
    return {"model_id": model, "seq_id": seq, "forward_backward_input": given}


def step_body(model: str, seq: int) -> dict[str, Any]:
    """An optimizer step."""
    return {"model_id": model, "seq_id": seq, "adam_params": {"learning_rate": 1e-2}}


def begin(server: Server) -> dict[str, Any]:
    """Train, save, freeze; leave a step in line that waits for the pass before it."""
    session = server.post("create_session", {"tags": [], "user_metadata": {}, "sdk_version": "0.36.0"})
    asked = {
        "session_id": session["session_id"],
        "model_seq_id": 0,
        "base_model": MODEL,
        "lora_config": {"rank": 2, "seed": 7},
    }
    model = server.result(server.post("create_model", asked))["model_id"]
    losses = [server.train(model, 1 + 2 * step, step) for step in range(STEPS)]
    after = 1 + 2 * STEPS
    saved = server.result(server.post("save_weights", {"model_id": model, "seq_id": after, "path": "kept"}))
    frozen = {"model_id": model, "seq_id": after + 1, "sampling_session_seq_id": 0}
    sampler = server.result(server.post("save_weights_for_sampler", frozen))["sampling_session_id"]
    server.post("optim_step", step_body(model, after + 3))
    return {
        "model": model,
        "losses": losses,
        "checkpoint": saved["path"],
        "sampler": sampler,
        "next": after + 2,
    }


def go_on(server: Server, facts: dict[str, Any]) -> dict[str, Any]:
    """Fill the gap, train on, load what was saved and sample from what was frozen."""
    model, seq = facts["model"], facts["next"]
    passed = server.post("forward_backward", pass_body(model, seq, STEPS))
    losses = [float(server.result(passed)["metrics"]["loss:sum"])]
    losses += [server.train(model, seq + 2 + 2 * n, STEPS + 1 + n) for n in range(2)]
    load = {"model_id": model, "seq_id": seq + 6, "path": facts["checkpoint"], "optimizer": True}
    assert "error" not in server.result(server.post("load_weights", load))
    again = server.train(model, seq + 7, STEPS)
    sample = {
        "sampling_session_id": facts["sampler"],
        "seq_id": 0,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 4, "temperature": 0.0},
    }
    drawn = server.result(server.post("asample", sample))
    assert "sequences" in drawn, drawn
    return {"losses": losses, "loaded": again, "tokens": drawn["sequences"][0]["tokens"]}


def main(target: Path) -> None:
    """Make the folder, kill its server, and see what comes of it."""
    from tinkex.testing import make_tiny_model

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        model, state = make_tiny_model(place / "model", **TINY), place / "state"
        server = Server(state, model)
        try:
            facts = begin(server)
        finally:
            server.kill()
        shutil.copytree(state, place / "copy")
        server = Server(place / "copy", model)
        try:
            facts["then"] = go_on(server, facts)
        finally:
            server.kill()
        (place / "expected.json").write_text(json.dumps(facts, indent=1))
        with tarfile.open(target, "w:xz") as tar:
            for each in ("expected.json", "state"):
                tar.add(place / each, each, filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
