"""Server cost with an engine that does nothing, beside a bare Starlette echo of the same bytes.

    python bench/server.py [--samples 3000] [--steps 1500] [--polls 2000] [--check]

Both servers run in processes of their own under uvicorn (httptools, uvloop); one client sends each the same
requests over a few connections and their CPU time is read from the system. A sample is two requests (submit
and result), a tiny train step four (a pass and an optimizer step, each submitted and fetched). The real
server writes its store to disk as always. Then polls are held open and its memory is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

KEY = "tml-bench"
CONNECTIONS = 8
TOKENS = 32
TICKS = os.sysconf("SC_CLK_TCK")
ENDLESS = 7
"""Samples of so many tokens never end: polls can wait for them."""
SLOW = 0.125
"""Steps of this learning rate take a while: their polls are held when they end."""


# ---- the two servers


def serve_tinkex(port: int, state: str) -> None:
    import uvicorn

    from tinkex.config import Secret
    from tinkex.engine import messages as m
    from tinkex.server import handlers
    from tinkex.server.app import App
    from tinkex.server.http_server import configure
    from tinkex.server.keys import KeyRing
    from tinkex.server.options import Limits, ModelSpec, ServerOptions
    from tinkex.server.service import Service
    from tinkex.server.sqlite_store import SqliteStore
    from tinkex.server.state_folder import StateFolder
    from tinkex.testing import make_tiny_model

    class Link:
        """Answers in the loop's next turn, from arrays made once."""

        facts: dict[str, Any] = {"device": "none", "dtype": "float32"}
        eos = (0,)

        def __init__(self, folder: Path, epoch: int, deliver: Callable[[Any], None], lost: Any) -> None:
            self.epoch, self.deliver = epoch, deliver
            self.streams = 0
            self.logprobs = np.full(TOKENS, -0.5, np.float32)

        async def start(self) -> None:
            pass

        async def close(self) -> None:
            pass

        def submit(self, message: Any) -> None:
            loop = asyncio.get_running_loop()
            if isinstance(message, m.OptimStep) and message.params["learning_rate"] == SLOW:
                loop.call_later(0.02, self.answer, message)
            else:
                loop.call_soon(self.answer, message)

        def answer(self, message: Any) -> None:
            epoch, name = self.epoch, message.request_id
            if isinstance(message, m.Sample):
                if message.params.max_tokens == ENDLESS:
                    return
                self.streams += 1
                stream = np.array([self.streams])
                self.deliver(m.SampleAccepted(epoch, name, self.streams, 1))
                ended = np.array([m.LENGTH])
                self.deliver(m.TokenStep(epoch, stream, stream, self.logprobs[:1], stream, ended))
                self.deliver(m.SampleDone(epoch, name, 0))
            elif isinstance(message, m.Train):
                result = m.PartResult(({"logprobs": self.logprobs},), {"loss:sum": 16.0})
                self.deliver(m.TrainDone(epoch, name, (result,) * len(message.parts)))
            else:
                self.deliver(m.Done(epoch, name, {"version": "v"}, {"told:max": time.monotonic()}))

    async def main() -> None:
        folder = make_tiny_model(Path(state) / "model")
        options = ServerOptions(
            models=(ModelSpec("tiny", folder),),
            state=Path(state),
            port=port,
            api_key=Secret(KEY),
            snapshot_steps=1 << 30,
            limits=Limits(samples=1 << 20),
        )
        folders = StateFolder(options.state)
        store = await SqliteStore.open(folders.store, options.durability)
        keys = KeyRing(options.state / "keys.json", extra=options.api_key)
        assert handlers.ROOMS
        app = App(Service(options, store, keys, folders, Link))
        config = configure(options, app)
        config.port = port
        await uvicorn.Server(config).serve()

    import uvloop

    uvloop.run(main())


def serve_echo(port: int) -> None:
    """Answers what it was told to: the first request of a path says what the others get."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    answers: dict[str, bytes] = {}

    async def teach(request: Request) -> Response:
        answers[request.path_params["path"]] = await request.body()
        return Response(b"{}", media_type="application/json")

    async def echo(request: Request) -> Response:
        await request.body()
        return Response(answers[request.path_params["path"]], media_type="application/json")

    routes = [
        Route("/teach/{path:path}", teach, methods=["POST"]),
        Route("/{path:path}", echo, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    uvicorn.run(app, port=port, log_config=None, access_log=False, loop="uvloop", http="httptools")


# ---- the client


class Connection:
    """One HTTP/1.1 connection, as lean as the figures need."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, path: str, body: bytes, kind: str = "application/json", accept: str = "") -> None:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {KEY}\r\ncontent-type: {kind}\r\n"
            f"accept: {accept or 'application/json'}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)

    async def receive(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        length = next(
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        return status, await self.reader.readexactly(length)

    async def post(self, path: str, body: bytes, kind: str = "application/json", accept: str = "") -> bytes:
        self.send(path, body, kind, accept)
        status, answer = await self.receive()
        assert status == 200, (path, status, answer)
        return answer

    async def call(self, path: str, **body: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self.post(f"/api/v1/{path}", json.dumps(body).encode()))
        return answer


def cpu_of(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> float:
    """Resident megabytes of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


Unit = Callable[[Connection, int], Awaitable[None]]


async def measure(pid: int, port: int, count: int, unit: Unit) -> float:
    """CPU microseconds of a process for one unit of work."""
    connections = [await Connection.open(port) for _ in range(CONNECTIONS)]

    async def run(connection: Connection, numbers: range) -> None:
        for number in numbers:
            await unit(connection, number)

    async def all_of(start: int, end: int) -> None:
        await asyncio.gather(
            *(run(each, range(start + i, end, CONNECTIONS)) for i, each in enumerate(connections))
        )

    warm = count // 10 // CONNECTIONS * CONNECTIONS
    await all_of(0, warm)
    before = cpu_of(pid)
    await all_of(warm, warm + count)
    used = cpu_of(pid) - before
    for each in connections:
        each.writer.close()
    return used / count * 1e6


PROTOBUF = "application/x-protobuf"
SAMPLE_PATH, POLL_PATH = "/api/v1/asample", "/api/v1/retrieve_future"


def sample_body(session: str, number: int, max_tokens: int = 1) -> bytes:
    body = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": [*range(TOKENS)], "type": "encoded_text"}]},
        "sampling_params": {"max_tokens": max_tokens, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        "sampling_session_id": session,
        "seq_id": number,
        "prompt_logprobs": False,
        "topk_prompt_logprobs": 0,
        "type": "sample",
    }
    return json.dumps(body, separators=(",", ":")).encode()


def poll_body(request_id: str) -> bytes:
    return b'{"request_id":"%b","allow_metadata_only":true}' % request_id.encode()


def pass_body(model: str, number: int) -> bytes:
    from tinkex import types
    from tinkex.wire.passes import PassRequest, encode_request

    inputs = {"target_tokens": [*range(1, TOKENS + 1)], "weights": [1.0] * TOKENS}
    datum = types.Datum(model_input=types.ModelInput.from_ints([*range(TOKENS)]), loss_fn_inputs=inputs)
    return encode_request(PassRequest(model, number, [datum], "cross_entropy"))


def step_body(model: str, number: int, rate: float = 1e-4) -> bytes:
    adam = {"learning_rate": rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
    body = {"model_id": model, "seq_id": number, "type": "optim_step", "adam_params": adam}
    return json.dumps(body, separators=(",", ":")).encode()


class Bench:
    """The same work for both servers."""

    def __init__(self, ours: tuple[int, int], echo: tuple[int, int]) -> None:
        self.ours, self.echo = ours, echo
        self.session = self.sampler = ""
        self.models: list[str] = []
        self.numbers = [0] * CONNECTIONS

    async def prepare(self) -> None:
        one = await Connection.open(self.ours[1])
        self.session = (await one.call("create_session", tags=[], user_metadata={}, sdk_version="0"))[
            "session_id"
        ]
        made = await one.call(
            "create_sampling_session", session_id=self.session, sampling_session_seq_id=0, base_model="tiny"
        )
        self.sampler = made["sampling_session_id"]
        for number in range(CONNECTIONS):
            ticket = await one.call(
                "create_model", session_id=self.session, model_seq_id=number, base_model="tiny"
            )
            await one.call("retrieve_future", request_id=ticket["request_id"])
            self.models.append(ticket["model_id"])
        await self._teach(one)

    async def _teach(self, one: Connection) -> None:
        """Tell the echo what the server answers."""
        two = await Connection.open(self.echo[1])
        number = 10**9
        answers = {"sample": await one.post(SAMPLE_PATH, sample_body(self.sampler, number))}
        answers["sampled"] = await one.post(
            POLL_PATH, poll_body(f"{self.sampler}:{number}"), accept=PROTOBUF
        )
        model = self.models[0]
        self.numbers[0] = 2
        answers["pass"] = await one.post("/api/v1/forward_backward", pass_body(model, 1), PROTOBUF)
        answers["passed"] = await one.post(POLL_PATH, poll_body(f"{model}:1"), accept=PROTOBUF)
        answers["step"] = await one.post("/api/v1/optim_step", step_body(model, 2))
        answers["stepped"] = await one.post(POLL_PATH, poll_body(f"{model}:2"))
        for name, answer in answers.items():
            await two.post(f"/teach/{name}", answer)

    async def sample(self, connection: Connection, number: int) -> None:
        await connection.post(SAMPLE_PATH, sample_body(self.sampler, number))
        await connection.post(POLL_PATH, poll_body(f"{self.sampler}:{number}"), accept=PROTOBUF)

    async def echoed_sample(self, connection: Connection, number: int) -> None:
        await connection.post("/sample", sample_body(self.sampler, number))
        await connection.post("/sampled", poll_body(f"{self.sampler}:{number}"), accept=PROTOBUF)

    async def step(self, connection: Connection, number: int) -> None:
        line = number % CONNECTIONS
        model, first = self.models[line], self.numbers[line] + 1
        self.numbers[line] += 2
        await connection.post("/api/v1/forward_backward", pass_body(model, first), PROTOBUF)
        await connection.post("/api/v1/optim_step", step_body(model, first + 1))
        await connection.post(POLL_PATH, poll_body(f"{model}:{first}"), accept=PROTOBUF)
        await connection.post(POLL_PATH, poll_body(f"{model}:{first + 1}"))

    async def echoed_step(self, connection: Connection, number: int) -> None:
        model = self.models[number % CONNECTIONS]
        await connection.post("/pass", pass_body(model, number), PROTOBUF)
        await connection.post("/step", step_body(model, number))
        await connection.post("/passed", poll_body(f"{model}:{number}"), accept=PROTOBUF)
        await connection.post("/stepped", poll_body(f"{model}:{number}"))

    async def wake(self, count: int) -> list[float]:
        """Milliseconds from the engine's answer to the client's, for polls that were held."""
        one = await Connection.open(self.ours[1])
        model, found = self.models[0], []
        for _ in range(count):
            self.numbers[0] += 1
            number = self.numbers[0]
            await one.post("/api/v1/optim_step", step_body(model, number, SLOW))
            answer = json.loads(await one.post(POLL_PATH, poll_body(f"{model}:{number}")))
            found.append((time.monotonic() - answer["metrics"]["told:max"]) * 1e3)
        return sorted(found)

    async def held(self, count: int) -> tuple[float, float]:
        """The server's memory with so many polls held, and before."""
        one = await Connection.open(self.ours[1])
        before = memory_of(self.ours[0])
        connections = []
        for number in range(count):
            name = 2 * 10**9 + number
            await one.post(SAMPLE_PATH, sample_body(self.sampler, name, max_tokens=ENDLESS))
            connection = await Connection.open(self.ours[1])
            connection.send(POLL_PATH, poll_body(f"{self.sampler}:{name}"), accept=PROTOBUF)
            connections.append(connection)
        for each in connections:
            await each.writer.drain()
        await one.call("session_heartbeat", session_id=self.session)
        used = memory_of(self.ours[0])
        for each in connections:
            each.writer.close()
        return used, before


# ---- the run


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("a server did not start")


async def run(options: argparse.Namespace, ours: tuple[int, int], echo: tuple[int, int]) -> bool:
    bench = Bench(ours, echo)
    await bench.prepare()
    sample = await measure(*ours, options.samples, bench.sample)
    plain_sample = await measure(*echo, options.samples, bench.echoed_sample)
    step = await measure(*ours, options.steps, bench.step)
    plain_step = await measure(*echo, options.steps, bench.echoed_step)
    woken = await bench.wake(200)
    used, before = await bench.held(options.polls)
    print(f"{'':>28} {'tinkex':>9} {'echo':>9} {'ratio':>7} {'goal':>7}")
    rows = [
        ("CPU µs per sample", sample, plain_sample, 3.0),
        ("CPU µs per train step", step, plain_step, 5.0),
    ]
    for name, mine, theirs, goal in rows:
        print(f"{name:>28} {mine:9.0f} {theirs:9.0f} {mine / theirs:7.2f} {goal:7.1f}")
    middle, late = woken[len(woken) // 2], woken[len(woken) * 99 // 100]
    print(f"{'finished to told, ms':>28} {middle:9.2f} {'':9} {'':7} {2.0:7.1f} (99 %: {late:.2f})")
    print(f"{options.polls:>6} polls held, memory MB {used:9.0f} {before:9.0f} (before) {200:14}")
    return all(mine <= goal * theirs for _, mine, theirs, goal in rows) and used <= 200 and middle <= 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--polls", type=int, default=2000)
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    parser.add_argument("--serve", choices=["tinkex", "echo"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--state", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve == "tinkex":
        return serve_tinkex(options.port, options.state)
    if options.serve == "echo":
        return serve_echo(options.port)
    with tempfile.TemporaryDirectory() as state:
        ports = {"tinkex": free_port(), "echo": free_port()}
        servers = {
            name: subprocess.Popen(
                [sys.executable, __file__, "--serve", name, "--port", str(port), "--state", state]
            )
            for name, port in ports.items()
        }
        try:
            for port in ports.values():
                wait_for(port)
            pairs = {name: (server.pid, ports[name]) for name, server in servers.items()}
            good = asyncio.run(run(options, pairs["tinkex"], pairs["echo"]))
        finally:
            for server in servers.values():
                server.kill()
                server.wait()
    if options.check and not good:
        raise SystemExit(1)
    return None


if __name__ == "__main__":
    main()
