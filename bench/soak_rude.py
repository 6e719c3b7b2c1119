"""Clients of a soak that no SDK would be: slow, vanishing, mistaken; refused or served, never a 5xx.

They speak HTTP by hand. What each sees is compared with what it must see; the rest is the tenants' to feel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from soak_worker import HANG, MODEL, Tally, pause, work

PROMPT = {"chunks": [{"tokens": [1, 2, 3, 4], "type": "encoded_text"}]}
LONG = 400
"""Tokens of samples that somebody leaves in the middle."""


class Raw:
    """One connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str) -> None:
        self.reader, self.writer, self.key = reader, writer, key

    def request(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        """A request's bytes."""
        head = (
            f"POST /api/v1/{path} HTTP/1.1\r\nhost: soak\r\nx-api-key: {self.key}\r\n"
            f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def answer(self) -> tuple[int, bytes]:
        """Read an answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return int(head[9:12]), await self.reader.readexactly(int(found.split(b":")[1]))

    async def ask(self, path: str, body: Any, kind: str = "application/json") -> tuple[int, Any]:
        """Send a request and read its answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.writer.write(self.request(path, raw, kind))
        status, found = await asyncio.wait_for(self.answer(), HANG)
        return status, json.loads(found) if found.startswith((b"{", b"[")) else found

    async def must(self, path: str, **body: Any) -> Any:
        """The same; anything but a 200 is an error."""
        status, found = await self.ask(path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {found}")
        return found

    async def result(self, ticket: dict[str, Any]) -> Any:
        """Wait for the result of work."""
        while True:
            status, found = await self.ask("retrieve_future", {"request_id": ticket["request_id"]})
            if status == 200:
                if isinstance(found, dict) and "error" in found:
                    raise RuntimeError(f"{ticket['request_id']}: {found}")
                return found
            if status != 408:
                raise RuntimeError(f"retrieve_future: {status} {found}")

    def cut(self) -> None:
        """Be gone without a word."""
        connection: socket.socket = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Rude:
    """Everyone who misbehaves, with a few keys of their own."""

    def __init__(self, plan: dict[str, Any], tally: Tally) -> None:
        address = urlsplit(plan["url"])
        self.host, self.port = address.hostname, address.port
        self.keys, self.plan, self.tally = plan["keys"], plan, tally
        self.chance = random.Random(7)

    @contextlib.asynccontextmanager
    async def connection(self, key: str | None = None) -> Any:
        """A connection that is closed in the end, one way or another."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        raw = Raw(reader, writer, key or self.chance.choice(self.keys))
        try:
            yield raw
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def session(self, raw: Raw) -> str:
        """A session's id."""
        return (await raw.must("create_session", tags=[], user_metadata={}, sdk_version="0"))["session_id"]

    async def sampler(self, raw: Raw, session: str) -> str:
        """A sampling session on the base model."""
        made = await raw.must(
            "create_sampling_session", session_id=session, sampling_session_seq_id=0, base_model=MODEL
        )
        return made["sampling_session_id"]

    def sample(self, sampler: str, number: int, tokens: int = 8) -> dict[str, Any]:
        """A sample's body."""
        return {
            "num_samples": 1, "prompt": PROMPT, "sampling_session_id": sampler, "seq_id": number,
            "sampling_params": {"max_tokens": tokens, "temperature": 1.0}, "type": "sample",
        }  # fmt: skip

    async def model(self, raw: Raw, session: str, number: int = 0) -> str:
        """A model's id, once it is there."""
        ticket = await raw.must("create_model", session_id=session, model_seq_id=number, base_model=MODEL,
                                lora_config={"rank": 4})  # fmt: skip
        await raw.result(ticket)
        return str(ticket["model_id"])

    def step(self, model: str, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """A pass and a step."""
        data = [
            {
                "model_input": PROMPT,
                "loss_fn_inputs": {
                    "target_tokens": {"data": [2, 3, 4, 5], "dtype": "int64", "shape": [4]},
                    "weights": {"data": [1.0] * 4, "dtype": "float32", "shape": [4]},
                },
            }
        ]
        given = {"data": data, "loss_fn": "cross_entropy"}
        passed = {"model_id": model, "seq_id": number, "forward_backward_input": given}
        adam = {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
        return passed, {"model_id": model, "seq_id": number + 1, "type": "optim_step", "adam_params": adam}

    # ---- slow ones

    async def reads_slowly(self) -> None:
        """Holds a poll and reads its answer a byte at a time."""
        async with self.connection() as raw:
            session = await self.session(raw)
            sampler = await self.sampler(raw, session)
            ticket = await raw.must("asample", **self.sample(sampler, 1, 100))
            body = json.dumps({"request_id": ticket["request_id"]}).encode()
            raw.writer.write(raw.request("retrieve_future", body))
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += await asyncio.wait_for(raw.reader.readexactly(1), HANG)
                await asyncio.sleep(0.02)
            if b" 200 " not in head[:16] and b" 408 " not in head[:16]:
                raise RuntimeError(f"a slow reader was told {head[:40]!r}")

    async def writes_slowly(self) -> None:
        """Sends a request a few bytes at a time."""
        async with self.connection() as raw:
            request = raw.request("create_session", b'{"tags":[],"user_metadata":{},"sdk_version":"0"}')
            for start in range(0, len(request), 8):
                raw.writer.write(request[start : start + 8])
                await raw.writer.drain()
                await asyncio.sleep(0.05)
            status, found = await asyncio.wait_for(raw.answer(), HANG)
            if status != 200:
                raise RuntimeError(f"a slow writer was told {status} {found!r}")

    # ---- those who vanish

    async def vanishes_in_request(self) -> None:
        """Is gone in the middle of a head or a body."""
        async with self.connection() as raw:
            request = raw.request("asample", json.dumps(self.sample("s-1:sample:0", 1)).encode())
            raw.writer.write(request[: self.chance.randrange(1, len(request))])
            await raw.writer.drain()
            raw.cut()

    async def vanishes_in_poll(self) -> None:
        """Is gone while its poll is held; its session is never closed."""
        async with self.connection() as raw:
            sampler = await self.sampler(raw, await self.session(raw))
            ticket = await raw.must("asample", **self.sample(sampler, 1, LONG))
            body = json.dumps({"request_id": ticket["request_id"]}).encode()
            raw.writer.write(raw.request("retrieve_future", body))
            await asyncio.sleep(0.1)
            raw.cut()

    async def vanishes_in_stream(self) -> None:
        """Is gone after the first tokens of a stream."""
        async with self.connection() as raw:
            sampler = await self.sampler(raw, await self.session(raw))
            body = json.dumps(self.sample(sampler, 1, LONG)).encode()
            raw.writer.write(raw.request("asample_stream", body))
            said = await asyncio.wait_for(raw.reader.readuntil(b"\n\n"), HANG)
            if b" 200 " not in said[:16]:
                raise RuntimeError(f"a stream was told {said[:60]!r}")
            raw.cut()

    async def vanishes_in_training(self) -> None:
        """Leaves a model with operations under way, an unnamed sampler and a session open."""
        async with self.connection() as raw:
            session = await self.session(raw)
            model = await self.model(raw, session)
            for path, body in zip(("forward_backward", "optim_step"), self.step(model, 1), strict=True):
                await raw.must(path, **body)
            await raw.must("save_weights_for_sampler", model_id=model, seq_id=3, sampling_session_seq_id=1)
            raw.cut()

    # ---- those who try again and again

    async def loads_and_unloads(self) -> None:
        """Makes models anew in one session, and takes them down again."""
        async with self.connection() as raw:
            session = await self.session(raw)
            for number in range(3):
                model = await self.model(raw, session, number)
                passed, stepped = self.step(model, 1)
                tickets = [await raw.must("forward_backward", **passed)]
                tickets.append(await raw.must("optim_step", **stepped))
                for ticket in tickets:
                    await raw.result(ticket)
                await raw.result(await raw.must("unload_model", model_id=model, seq_id=3))

    # ---- mistaken ones

    async def mistaken(self) -> None:
        """Wrong keys, bodies and names: each is told so."""
        async with self.connection() as raw:
            session = await self.session(raw)
            wrong: list[tuple[str, Any, set[int]]] = [
                ("create_session", b"{", {400, 422}),
                ("create_session", b"\xff\xfe", {400, 422}),
                ("asample", self.sample("s-0000000000000000:sample:0", 1), {404}),
                ("asample", {"prompt": PROMPT}, {400, 422}),
                ("forward_backward", b"\x0a\xff\xff", {400, 422}),
                ("retrieve_future", {"request_id": "s-1:train:0:1"}, {404}),
                (
                    "create_model",
                    {"session_id": session, "model_seq_id": 0, "base_model": "no"},
                    {400, 404},
                ),
                ("no_such_route", {}, {404}),
            ]
            for path, body, expected in wrong:
                status, found = await raw.ask(path, body)
                if status not in expected:
                    raise RuntimeError(f"{path}: {status} {found}")
        async with self.connection("tml-nobody-has-this") as raw:
            status, found = await raw.ask("create_session", {"tags": [], "user_metadata": {}})
            if status not in (401, 429):  # an address that tries many is slowed
                raise RuntimeError(f"a wrong key: {status} {found}")

    async def again_and_again(self, habit: Callable[[], Awaitable[None]], over: asyncio.Event) -> None:
        """Do it until the end."""
        name = habit.__name__.replace("_", " ")
        while not await pause(over, self.plan["rude_pause"] * (0.5 + self.chance.random())):
            try:
                await habit()
                self.tally.did[name] += 1
            except Exception as error:
                self.tally.failed(name, error)


def start(plan: dict[str, Any], tally: Tally, over: asyncio.Event) -> list[Awaitable[None]]:
    """Everyone who misbehaves."""
    rude = Rude(plan, tally)
    habits = (
        rude.reads_slowly, rude.writes_slowly, rude.vanishes_in_request, rude.vanishes_in_poll,
        rude.vanishes_in_stream, rude.vanishes_in_training, rude.loads_and_unloads, rude.mistaken,
    )  # fmt: skip
    return [rude.again_and_again(habit, over) for habit in habits]


if __name__ == "__main__":
    asyncio.run(work(start))
