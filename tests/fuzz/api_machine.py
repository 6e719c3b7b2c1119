"""A stateful fuzzer of the API: several owners at once, ids of their own and of others, time and deaths.

Runs the real application with an engine that computes nothing, in process, on a clock moved by hand.
After each call: no 5xx, an answer within bounded time, no word of another owner in it, and what it says
agrees with what the caller remembers. `python -m tests.fuzz.api_machine CALLS SEED [sqlite]` runs it alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.server.client import Answer, Client
from tests.server.machine import Machine
from tinkex.server.assembly import pages
from tinkex.wire.routes import route

from .api_books import Owner, Ticket, Words

OWNERS = ("ann", "bob", "cat")
LONGEST = 200.0
"""Seconds of the server's time within which every call is answered."""
SESSION_SECONDS = 600.0
Whose = Literal["own", "other", "none"]


class Failed(AssertionError):
    """The server did what it must not do; the text has the calls that led there."""


class ApiMachine:
    """The server, its owners, and what they know."""

    def __init__(self, folder: Path, seed: int, kind: str = "memory") -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.server = Machine(
            folder, kind, pages=dict(pages()), options={"snapshot_steps": self.rng.choice((1, 3, 16))}
        )
        self.server.key["cat"] = self.server.keys.add("cat-key", "cat")[1].reveal()
        self.owners = [Owner(name, Client(self.server, self.server.key[name])) for name in OWNERS]
        self.words = Words()
        self.calls = 0
        self.told: list[str] = []
        self.statuses: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        """How often things could be compared with what is known."""
        self.engine_down = False
        self.at_once = False
        """Whether several owners are at it at the same time: what others do then is not known."""

    # ---- calls

    async def call(
        self,
        me: Owner,
        name: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        query: str = "",
        leave: bool = False,
        **params: str,
    ) -> Answer:
        """One call of one owner and its answer, checked; `leave`: the client goes before it is answered."""
        at = route(name)
        params = {name: value or "x" for name, value in params.items()}
        raw, sent = me.client.raw(body), me.client.headers(headers)
        return await self.send(me, name, at.method, at.url_path(**params), raw, sent, query, leave)

    async def send(
        self,
        me: Owner,
        name: str,
        method: str,
        path: str,
        raw: bytes | list[bytes] = b"",
        headers: dict[str, str] | None = None,
        query: str = "",
        leave: bool = False,
    ) -> Answer:
        """The same by method and path."""
        self.calls += 1
        assert isinstance(raw, bytes)
        said = f"{path}?{query} {headers or {}}".encode() + raw
        self.words.learn(me, said)
        stream = self.server.open(method, path, raw, headers, query)
        if leave:
            await self.server.turns(self.rng.randrange(12))
            stream.close()
            await asyncio.gather(stream.task, return_exceptions=True)
            self._note(me, name, "left")
            return Answer(0, {}, b"")
        answer = await self._driven(asyncio.ensure_future(stream.whole()), f"{me.name} {name}")
        self._note(me, name, str(answer.status))
        self._check(me, name, said, answer)
        return answer

    def _note(self, me: Owner, name: str, outcome: str) -> None:
        self.told.append(f"{self.calls}: {me.name} {name} -> {outcome}")
        del self.told[:-40]
        self.statuses[outcome] += 1

    def _check(self, me: Owner, name: str, said: bytes, answer: Answer) -> None:
        allowed = answer.status == 503 and self.engine_down and "retry-after" in answer.headers
        if answer.status >= 500 and not allowed:
            raise self.failed(f"{name} was answered {answer}")
        whole = answer.body + repr(answer.headers).encode()
        leaked = self.words.leaked(me, said, whole)
        if leaked:
            raise self.failed(f"{name} told {me.name} {sorted(leaked)}: {answer}")
        self.words.learn(me, whole)
        if 400 <= answer.status < 500 and answer.status not in (408, 416) and not answer.json.get("detail"):
            raise self.failed(f"{name} was refused without a reason: {answer}")

    async def _driven(self, work: asyncio.Task[Answer], what: str) -> Answer:
        """Wait for an answer; time moves when nothing else does."""
        waited = 0.0
        while waited < LONGEST:
            for turn in range(70):
                if work.done():
                    return work.result()
                await asyncio.sleep(0 if turn < 60 else 0.0005)
            self.advance(2.5)
            waited += 2.5
        work.cancel()
        raise self.failed(f"{what} was not answered within {LONGEST} s")

    def failed(self, text: str) -> Failed:
        """What went wrong, after which calls."""
        return Failed("\n".join([f"seed {self.seed}, call {self.calls}: {text}", *self.told[-25:]]))

    def agree(self, holds: object, text: str) -> None:
        """Refuse what does not agree with what is known."""
        if not holds:
            raise self.failed(text)

    # ---- results

    async def result(self, me: Owner, ticket: Ticket) -> Any:
        """The result of accepted work, waited for; the same whenever it is asked for."""
        for _ in range(8):
            binary = self.rng.random() < 0.2
            headers = {"accept": "application/x-protobuf"} if binary and ticket.answer is None else None
            answer = await self.call(me, "retrieve_future", {"request_id": ticket.id}, headers=headers)
            if answer.status != 408:
                break
        else:
            if self.engine_down:
                return None
            raise self.failed(f"{ticket.id} has no result after all this time")
        if answer.status != 200:
            self.agree(answer.status == 410 or ticket.kind == "?", f"{ticket.id}: {answer}")
            return None
        if "protobuf" in answer.headers.get("content-type", ""):
            return {}
        if ticket.answer is not None and ticket.kind != "asample":
            self.checked["results asked for again"] += 1
            self.agree(answer.body == ticket.answer, f"{ticket.id} had another result: {ticket.answer!r}")
        ticket.answer = answer.body
        return answer.json

    # ---- who and what

    def pick(self, me: Owner, kind: str, foreign: float = 0.12) -> tuple[str, Whose]:
        """An id of some kind: mostly of one's own, at times of somebody else, at times of nothing."""
        draw = self.rng.random()
        if draw < foreign:
            others = [id for owner in self.owners if owner is not me for id in getattr(owner, kind)]
            if others:
                return self.rng.choice(others), "other"
        own = list(getattr(me, kind))
        if draw > 0.97 or not own:
            return self.rng.choice(
                ("", "x", "s-0000000000000000", "tinker://a/weights/b", "é:train:0")
            ), "none"
        return self.rng.choice(own[-6:]), "own"

    def alive(self, me: Owner, session: str) -> bool:
        """Whether a session is sure to be open."""
        seen = me.sessions.get(session)
        spare = 450 if self.at_once else 60  # those who wait at the same time let time pass
        return seen is not None and self.server.clock.passed - seen < SESSION_SECONDS - spare

    def advance(self, seconds: float) -> None:
        """Let the server's time pass."""
        self.server.clock.advance(seconds)

    # ---- deaths

    async def restart(self, how: str) -> None:
        """End the server, gently or not, and start it again."""
        self.told.append(f"   restart: {how}")
        await (self.server.restart() if how == "crash" else self.server.reopen())
        self.engine_down = False

    async def _all_at_once(self) -> None:
        """Every owner does something, all at the same time."""
        from .api_operations import AT_ONCE

        self.told.append("   all at once")
        self.at_once = True
        works = [self.rng.choice(AT_ONCE)(self, each) for each in self.owners]
        try:
            await asyncio.gather(*works)
        finally:
            self.at_once = False

    async def run(self, calls: int) -> None:
        """Do things until there were so many calls, then look at everything once more."""
        from .api_operations import OPERATIONS, create_model, inspect, open_session

        await self.server.start()
        try:
            names, weights = [each for each, _ in OPERATIONS], [weight for _, weight in OPERATIONS]
            while self.calls < calls:
                (operation,) = self.rng.choices(names, weights)
                me = self.rng.choice(self.owners)
                if not any(self.alive(me, each) for each in me.sessions):
                    await open_session(self, me)
                    await create_model(self, me)
                await operation(self, me)
                if self.rng.random() < 0.2:
                    await self._all_at_once()
                if self.rng.random() < 0.01:
                    await inspect(self)
            await inspect(self)
        finally:
            await self.server.stop()


def run(calls: int, seed: int, kind: str = "memory") -> ApiMachine:
    """Run a fuzzer of its own."""
    with tempfile.TemporaryDirectory(prefix="tinkex-fuzz-") as folder:
        machine = ApiMachine(Path(folder), seed, kind)
        asyncio.run(machine.run(calls))
        return machine


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    done = run(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4])
    seconds = time.perf_counter() - began
    counts = json.dumps({**dict(sorted(done.statuses.items())), **dict(sorted(done.checked.items()))})
    print(f"seed {done.seed}: {done.calls} calls in {seconds:.1f} s, {counts}")
