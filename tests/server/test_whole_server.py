"""Two owners do anything in any order while engines and servers die: everything accepted ends, once."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from tinkex.engine.messages import CreateAdapter, OptimStep, Sample, SaveSampler, Train
from tinkex.testing.noop_operations import NoopModel
from tinkex.wire.headers import PROTOBUF

from .client import Client, datum
from .machine import Machine

T = TypeVar("T")
LORA = {"rank": 4, "seed": 11}
HELD = (CreateAdapter, OptimStep, Sample, SaveSampler, Train)


@dataclass(eq=False)
class Model:
    """A model as its client knows it."""

    id: str
    client: Client
    session: str
    next: int = 1
    sent: dict[int, tuple[str, int]] = field(default_factory=dict)
    """What was accepted under each number: a kind, and what it was done with."""


@dataclass(eq=False)
class Accepted:
    """Work a client has a ticket for."""

    id: str
    client: Client
    sample: bool = False
    lives: int = 0
    """Which server accepted it."""
    result: Any = None


class WholeServer(RuleBasedStateMachine):
    """Anything clients do, next to a plain record of what was accepted."""

    models = Bundle("models")
    samplers = Bundle("samplers")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="tinkex-"))
        self.server = Machine(self.folder, options={"snapshot_steps": 2}, limits={"samples": 12})
        self.run(self.server.start())
        self.sessions: dict[str, Client] = {}
        self.accepted: dict[str, Accepted] = {}
        self.known: list[Model] = []
        self.finished: set[str] = set()
        self.lives = 0
        self.next_sample = 0

    def run(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def accept(self, id: str, client: Client, sample: bool = False) -> None:
        if id in self.accepted:
            assert self.accepted[id].client is client
        else:
            self.accepted[id] = Accepted(id, client, sample, self.lives)

    # ---- making things

    @rule(target=models, who=st.sampled_from(["ann", "bob"]), old=st.booleans(), data=st.data())
    def create_model(self, who: str, old: bool, data: st.DataObject) -> Model:
        client = getattr(self.server, who)
        own = [
            each for each, owner in self.sessions.items() if owner is client and each not in self.finished
        ]
        session = data.draw(st.sampled_from(own)) if own and old else self.run(client.session())
        self.sessions[session] = client
        number = sum(model.session == session for model in self.known)
        id = self.run(client.begin_model(session, number, lora_config=LORA))
        self.accept(f"{id}:0", client)
        model = Model(id, client, session)
        self.known.append(model)
        return model

    @rule(target=samplers, model=models)
    def open_sampler(self, model: Model) -> tuple[str, Client, str]:
        if model.session in self.finished:
            return ("", model.client, model.session)
        self.next_sample += 1
        body = {"session_id": model.session, "sampling_session_seq_id": 1000 + self.next_sample}
        made = self.run(model.client.ok("create_sampling_session", {**body, "base_model": "tiny"}))
        return (made["sampling_session_id"], model.client, model.session)

    # ---- training

    def send(self, model: Model, number: int, kind: str, value: int) -> int:
        """Send an operation; whether it was accepted is noted, and its status answered."""
        client, id = model.client, model.id
        if kind == "pass":
            sending = client(
                "forward_backward",
                *client.train_body(id, number, datum([value, value + 1])),
                headers={"content-type": PROTOBUF},
            )
        elif kind == "step":
            body = {"model_id": id, "seq_id": number, "adam_params": {"learning_rate": value}}
            sending = client("optim_step", body)
        elif kind == "freeze":
            body = {"model_id": id, "seq_id": number, "path": f"n{number}"}
            sending = client("save_weights_for_sampler", body)
        else:
            body = {"model_id": id, "seq_id": number, "path": f"n{value}", "overwrite": True}
            sending = client("save_weights", body)
        answer = self.run(sending)
        if answer.status == 200:
            assert answer.json["request_id"] == f"{id}:{number}"
            self.accept(f"{id}:{number}", client)
            model.sent.setdefault(number, (kind, value))
        else:
            assert model.session in self.finished, str(answer)
            assert answer.status in (400, 404), str(answer)
        return answer.status

    @rule(
        model=models,
        kind=st.sampled_from(["pass", "pass", "step", "freeze", "save"]),
        value=st.integers(1, 9),
    )
    def operate(self, model: Model, kind: str, value: int) -> None:
        self.send(model, model.next, kind, value)
        model.next += 1

    @rule(model=models, order=st.permutations(range(3)), value=st.integers(1, 9))
    def operate_out_of_order(self, model: Model, order: list[int], value: int) -> None:
        for place in order:
            self.send(model, model.next + place, "pass", value + place)
        model.next += 3

    @rule(model=models)
    def skip_a_number(self, model: Model) -> None:
        model.next += 1

    @rule(model=models, value=st.integers(1, 9))
    def send_what_is_refused(self, model: Model, value: int) -> None:
        body = {"model_id": model.id, "seq_id": model.next, "adam_params": {"beta1": value}}
        answer = self.run(model.client("optim_step", body))
        assert answer.status in (400, 404)
        model.next += 1

    @rule(model=models, data=st.data(), value=st.integers(1, 9))
    def send_again(self, model: Model, data: st.DataObject, value: int) -> None:
        if model.sent:
            number = data.draw(st.sampled_from(sorted(model.sent)))
            assert self.send(model, number, model.sent[number][0], value) == 200

    @rule(model=models)
    def ask_for_somebody_elses(self, model: Model) -> None:
        other = self.server.bob if model.client is self.server.ann else self.server.ann
        body = {"model_id": model.id, "seq_id": model.next, "adam_params": {}}
        assert self.run(other("optim_step", body)).status == 404
        assert self.run(other.poll(f"{model.id}:0")).status == 404

    # ---- sampling

    @rule(sampler=samplers, seq=st.integers(0, 6), number=st.integers(1, 4))
    def sample(self, sampler: tuple[str, Client, str], seq: int, number: int) -> None:
        name, client, session = sampler
        answer = self.run(client("asample", client.sample_body(name, seq, num_samples=number)))
        if answer.status == 200:
            assert answer.json["request_id"] == f"{name}:{seq}"
            known = self.accepted.get(f"{name}:{seq}")
            if known is not None and known.lives != self.lives:
                del self.accepted[known.id]  # lost in a restart, and asked for again
            self.accept(f"{name}:{seq}", client, sample=True)
        else:
            assert answer.status == 429 or not name or session in self.finished, str(answer)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        samples = [each for each in self.accepted.values() if each.sample and each.lives == self.lives]
        if samples:
            chosen = data.draw(st.sampled_from(samples))
            self.run(chosen.client.ok("cancel_future", {"request_id": chosen.id}))

    # ---- what goes wrong

    @rule(turns=st.integers(0, 30))
    def kill_the_engine(self, turns: int) -> None:
        async def kill() -> None:
            self.server.kill_engine()
            await self.server.turns(turns)

        self.run(kill())

    @rule(cleanly=st.booleans())
    def restart_the_server(self, cleanly: bool) -> None:
        self.run(self.server.reopen() if cleanly else self.server.restart())
        self.lives += 1

    @rule(kinds=st.sets(st.sampled_from(HELD)))
    def hold(self, kinds: set[type]) -> None:
        self.server.engine.hold(*kinds)

    @rule(turns=st.integers(0, 30))
    def release(self, turns: int) -> None:
        async def release() -> None:
            self.server.engine.release()
            await self.server.turns(turns)

        self.run(release())

    @rule(seconds=st.sampled_from([0.0, 1.0, 11.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.run(self.server.wait(seconds))

    @rule(model=models)
    def finish(self, model: Model) -> None:
        body = {"reason": {"type": "success"}, "detail": None}
        self.run(model.client.ok("finish_session", body, session_id=model.session))
        self.finished.add(model.session)

    # ---- what must hold

    @rule(data=st.data())
    def look_at_a_result(self, data: st.DataObject) -> None:
        if self.accepted:
            work = data.draw(st.sampled_from(list(self.accepted.values())))
            poll = self.loop.create_task(work.client.poll(work.id))
            self.run(self.server.settle())
            if poll.done():
                self.note(work, poll.result())
            else:
                poll.cancel()

    def note(self, work: Accepted, answer: Any) -> None:
        if work.sample and work.lives != self.lives:
            assert answer.status == 410, str(answer)
            return
        assert answer.status == 200, str(answer)
        assert work.result is None or work.result == answer.json
        work.result = answer.json

    @invariant()
    def nobody_is_charged_for_nothing(self) -> None:
        held = self.server.service.queued
        assert all(count >= 0 and size >= 0 for count, size in held.values())

    def teardown(self) -> None:
        try:
            self.run(self.check_end())
        finally:
            self.run(self.server.stop())
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    async def check_end(self) -> None:
        server = self.server
        server.engine.release()
        for _ in range(12):  # a hole may lie behind another
            await server.wait(11)
        for work in list(self.accepted.values()):
            poll = work.client.begin_poll(work.id)
            await server.until(poll.done)
            self.note(work, poll.result())
        assert server.service.queued.get("ann", [0, 0]) == [0, 0]
        assert server.service.queued.get("bob", [0, 0]) == [0, 0]
        assert not any(server.service.sampling_rows.values())
        for model in self.known:
            if model.session not in self.finished:
                assert server.engine.models[model.id] == await self.expected(model)

    async def expected(self, model: Model) -> NoopModel:
        """What the engine makes of the operations that succeeded, in order, when nothing goes wrong."""
        folder = self.folder / "again" / model.id
        async with Machine(folder) as calm:
            ann = calm.ann
            same = await ann.model(lora_config=LORA)
            number = 0
            for seq in sorted(model.sent):
                kind, value = model.sent[seq]
                if "error" in self.accepted[f"{model.id}:{seq}"].result or kind not in ("pass", "step"):
                    continue
                number += 1
                if kind == "pass":
                    await ann.done(await ann.train(same, number, datum([value, value + 1])))
                else:
                    await ann.done(await ann.step(same, number, learning_rate=value))
            return calm.engine.models[same]


WholeServer.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
test_whatever_clients_do_and_whoever_dies = WholeServer.TestCase
