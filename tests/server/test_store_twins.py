"""Random changes and questions: the real store and the one in memory give the same answers."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tinkex.server.records import (
    AnswerRow,
    AuditRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    OperationRow,
    SamplerRow,
    SessionRow,
    UsageRow,
)
from tinkex.server.sqlite_store import SqliteStore
from tinkex.server.store import (
    Count,
    Delete,
    Finish,
    ForgetBodies,
    ForgetResults,
    Note,
    Page,
    Put,
    Seen,
    SessionFilter,
)
from tinkex.testing import MemoryStore

# Few names and times, so that rows meet.
names = st.sampled_from(["a", "b", "c:train:0", "Ä\x00'%"])
owners = st.sampled_from(["ann", "bob"])
times = st.integers(0, 6).map(float) | st.sampled_from([0.5, 1e9 + 0.1])
seqs = st.integers(-1, 5)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
maybe = st.none() | texts
projects = st.sampled_from([None, "p", "q"])
# Longer than 8 bytes: in a file.
bodies = st.binary(max_size=4) | st.binary(min_size=9, max_size=12)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
metadata = st.dictionaries(st.sampled_from(["n", "m"]), json, max_size=2)
statuses = st.sampled_from(["active", "finished", "expired"])
reasons = st.sampled_from([None, "success", "errored"])
states = st.sampled_from(["queued", "done", "failed"])
ended = st.sampled_from(["done", "failed"])
integers = st.integers(-(2**63), 2**63 - 1)

sessions = st.builds(
    SessionRow,
    id=names,
    owner=owners,
    created=times,
    last_seen=times,
    tags=st.lists(texts, max_size=2),
    user_metadata=metadata,
    sdk_version=texts,
    project_id=projects,
    display_name=maybe,
    status=statuses,
    reason=reasons,
    detail=maybe,
    ended=st.none() | times,
)
models = st.builds(
    ModelRow,
    id=names,
    session_id=names,
    owner=owners,
    base_model=texts,
    created=times,
    last_request=times,
    rank=integers,
    seed=integers,
    train_attn=st.booleans(),
    train_mlp=st.booleans(),
    train_unembed=st.booleans(),
    optimizer=metadata,
    user_metadata=st.none() | metadata,
    state=st.sampled_from(["live", "unloaded", "corrupted"]),
    note=texts,
    watermark=seqs,
    snapshot=seqs,
    skipped=st.lists(seqs, max_size=3),
)
samplers = st.builds(
    SamplerRow,
    id=names,
    session_id=names,
    owner=owners,
    base_model=texts,
    created=times,
    model_path=maybe,
    model_id=maybe,
    version=texts,
    joined=integers,
)
checkpoints = st.builds(
    CheckpointRow,
    path=names,
    run_id=names,
    kind=st.sampled_from(["training", "sampler", "external"]),
    name=texts,
    owner=owners,
    base_model=texts,
    rank=integers,
    created=times,
    size=st.integers(0, 2**50),
    folder=texts,
    train_attn=st.booleans(),
    public=st.booleans(),
    optimizer=metadata,
    version=texts,
    expires=st.none() | times,
    user_metadata=st.none() | st.dictionaries(texts, texts, max_size=2),
    project_id=projects,
    session_id=names,
)
losses = st.builds(
    LossRow, id=names, session_id=names, owner=owners, created=times, name=texts, definition=texts
)
answers = st.builds(AnswerRow, id=names, answer=texts, created=times)


@st.composite
def operations(draw: st.DrawFn) -> OperationRow:
    model_id, seq = draw(names), draw(seqs)
    return OperationRow(
        f"{model_id}:{seq}",
        model_id,
        seq,
        draw(texts),
        draw(owners),
        draw(times),
        draw(bodies),
        draw(texts),
        draw(states),
        draw(bodies),
        draw(texts),
        draw(texts),
        draw(texts),
        draw(st.none() | times),
    )


@st.composite
def finishes(draw: st.DrawFn) -> Finish:
    model_id = draw(names)
    return Finish(
        f"{model_id}:{draw(seqs)}",
        draw(ended),
        draw(times),
        model_id,
        draw(seqs),
        draw(bodies),
        draw(texts),
        draw(texts),
        draw(texts),
    )


rows = sessions | models | samplers | checkpoints | losses | answers
plain_kinds = st.sampled_from([SessionRow, ModelRow, SamplerRow, CheckpointRow, LossRow, AnswerRow])
usage = st.builds(
    UsageRow,
    hour=st.integers(0, 3),
    owner=owners,
    kind=st.sampled_from(["training", "checkpoint"]),
    session_id=names,
    base_model=st.sampled_from(["x", "y"]),
    project_id=st.sampled_from(["", "p"]),
    count=st.integers(0, 2**40),
)
notes = st.builds(
    AuditRow,
    time=times,
    owner=owners,
    event=st.sampled_from(["checkpoint.created", "checkpoint.deleted", "project.created"]),
    model_id=maybe,
    tinker_path=maybe,
    details=metadata,
)
changes = st.one_of(
    st.builds(Put, rows),
    st.builds(Put, operations()),
    st.builds(Put, operations()),
    finishes(),
    finishes(),
    st.builds(Delete, plain_kinds, names),
    st.builds(lambda model, seq: Delete(OperationRow, f"{model}:{seq}"), names, seqs),
    st.builds(Seen, names, times),
    st.builds(Count, usage),
    st.builds(Note, notes),
    st.builds(ForgetBodies, names, seqs),
    st.builds(ForgetResults, times),
)
pages = st.builds(Page, st.integers(0, 3), st.integers(0, 3))
filters = st.builds(
    SessionFilter,
    owner=owners,
    session_id=st.none() | names,
    project_ids=st.lists(st.sampled_from(["p", "q"]), max_size=2).map(tuple),
    display_name=st.none() | st.text(max_size=1),
    statuses=st.lists(
        st.tuples(statuses, st.lists(st.sampled_from(["success", "errored"]), max_size=1).map(tuple)),
        max_size=2,
    ).map(tuple),
    user_metadata=st.dictionaries(
        st.sampled_from(["n", "m"]), st.sampled_from(["0", "True", ""]), max_size=1
    ),
    before=st.none() | st.tuples(times, names),
)


class Twins(RuleBasedStateMachine):
    """The same done to both, and the same asked of both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.real = self.open()
        self.twin = MemoryStore()
        self.changed = False

    def open(self) -> SqliteStore:
        return self.runner.run(SqliteStore.open(self.folder / "store", largest_inside=8))

    def teardown(self) -> None:
        self.runner.run(self.real.close())
        self.runner.close()
        shutil.rmtree(self.folder)

    def same(self, name: str, *args: Any, **more: Any) -> Any:
        async def both() -> Any:
            found = await getattr(self.real, name)(*args, **more)
            assert found == await getattr(self.twin, name)(*args, **more), (name, args, more)
            return found

        return self.runner.run(both())

    @rule(groups=st.lists(st.lists(changes, min_size=1, max_size=4), min_size=1, max_size=4))
    def write(self, groups: list[list[Any]]) -> None:
        async def both() -> None:
            await asyncio.gather(*(self.real.write(*group) for group in groups))
            for group in groups:
                await self.twin.write(*group)

        self.runner.run(both())
        self.changed = True

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.real.close())
        self.real = self.open()

    @invariant()
    @precondition(lambda self: self.changed)
    def operations_are_the_same_and_so_are_their_files(self) -> None:
        found = []
        for model in ("a", "b", "c:train:0", "Ä\x00'%"):
            found += self.same("queued", model) + self.same("replay", model, -2)
        large = [data for row in found for data in (row.body, row.result) if len(data) > 8]
        files = [path.read_bytes() for path in (self.folder / "store" / "bodies").iterdir()]
        assert sorted(files) == sorted(large)
        self.changed = False

    @rule(owner=owners, page=pages, now=times, project=projects, run=st.none() | names)
    def lists(self, owner: str, page: Page, now: float, project: str | None, run: str | None) -> None:
        self.same("sessions", owner, page)
        self.same("models", owner, page, project_id=project)
        self.same("checkpoints", owner, page, now=now, run_id=run)
        self.same("live_sessions")
        self.same("expired_checkpoints", now)
        self.same("storage")
        self.same("storage", owner)

    @rule(ids=st.lists(names, max_size=3), now=times)
    def of_sessions(self, ids: list[str], now: float) -> None:
        for name in ("models_of", "samplers_of", "losses_of"):
            self.same(name, ids)
        self.same("checkpoints_of", ids, now=now)
        self.same("history", ids)

    @rule(wanted=filters, limit=st.integers(0, 4))
    def searches(self, wanted: SessionFilter, limit: int) -> None:
        self.same("search_sessions", wanted, limit)

    @rule(id=names, seq=seqs)
    def one(self, id: str, seq: int) -> None:
        for kind in (SessionRow, ModelRow, SamplerRow, CheckpointRow, LossRow):
            self.same("get", kind, id)
        self.same("get", OperationRow, f"{id}:{seq}")
        self.same("answer", id)
        self.same("replay", id, seq)

    @rule(owner=owners, hours=st.tuples(st.integers(0, 4), st.integers(0, 4)), span=st.tuples(times, times))
    def counts(self, owner: str, hours: tuple[int, int], span: tuple[float, float]) -> None:
        self.same("usage", owner, *hours)
        self.same("audit", owner, *span, [])
        self.same("audit", owner, *span, ["checkpoint.c", "project"])


Twins.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTwins = Twins.TestCase
