"""The server as one object: what it was started with, what is alive, and what handlers ask of it.

It opens everything in `start` and closes it in `stop`, in that order and the reverse one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..engine.kill_points import reach
from ..engine.messages import Unload
from ..types import CreateCustomLossRequest
from ..wire.jsonbody import decode
from .asks import Ask
from .base_models import BaseFacts, Catalogue
from .boots import forget_boot, note_boot
from .checkpoint_files import discard, thaw
from .clock import Clock, SystemClock
from .engine_room import EngineRoom, MakeLink
from .exports import Exports
from .leftovers import Sweeper
from .line import Line
from .metrics import Metrics
from .operations import Operation, Outcome, PassWork, SaveSamplerWork, Work
from .options import ServerOptions
from .problems import Problem
from .records import CheckpointRow, ModelRow, OperationRow, SamplerRow, SessionRow
from .recovery import advice
from .request_ids import REQUEST
from .sample_journal import SampleJournal
from .sampling import SamplingDesk
from .scheduler import Scheduler
from .signing import SignedUrls
from .state_folder import is_inside
from .store import Change, Finish, Put, Seen, Store, StoreFailed
from .tickets import Tickets
from .turns import Turns
from .usage import UsageLedger
from .works import make_work, read_operation
from .world import LiveModel, LiveSampler, LiveSession, World
from .writing import Writes
from .wrong_keys import WrongKeys

log = logging.getLogger(__name__)


class KeyInfo(Protocol):
    """What a credential stands for."""

    @property
    def id(self) -> int:
        """The key's number."""

    @property
    def owner(self) -> str:
        """Whose it is."""


class Keys(Protocol):
    """Who a credential belongs to."""

    def owner_of(self, credential: str) -> KeyInfo | None:
        """The key's facts, or None."""


class Folders(Protocol):
    """Where files lie; names from the network cannot lead elsewhere."""

    def snapshot(self, model_id: str, seq: int) -> Path:
        """The folder of a model's snapshot."""

    def checkpoint(self, run_id: str, kind: str, name: str, seq: int) -> Path:
        """The folder of a checkpoint; every save has one of its own."""

    def engine(self, folder: Path) -> Path:
        """Where the engine of a base model keeps cold states and ephemeral samplers."""

    def usage(self) -> dict[str, int]:
        """Bytes on disk by folder."""


class Service(Writes):
    """Everything one server is."""

    def __init__(
        self,
        options: ServerOptions,
        store: Store,
        keys: Keys,
        folders: Folders,
        make_link: MakeLink,
        *,
        clock: Clock | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__(store, clock or SystemClock())
        self.options, self.keys, self.folders = options, keys, folders
        self.url = (options.public_url or url or f"http://{options.host}:{options.port}").rstrip("/")
        self.prefix = urlsplit(self.url).path.rstrip("/")
        self.catalogue = Catalogue(options.models)
        self.world = World()
        self.tickets = Tickets(monotonic=self.clock.monotonic)
        self.samples = SampleJournal(options.state / "samples.log", sync=options.durability == "power")
        self.usage = UsageLedger()
        self.metrics = Metrics()
        self.wrong_keys = WrongKeys()
        self.turns = Turns()
        """One change of checkpoints at a time for each owner."""
        self.exports = Exports(self)
        self.downloads = SignedUrls(options.state, self.url, options.times.download, self.clock.time)
        self.started = self.clock.time()
        self.draining = False
        self.machine_went_down = False
        """Whether the store may lack what clients were told before this start."""
        self._drained_by = 0.0
        self.housekeepers: list[Callable[[Service], Coroutine[Any, Any, None]]] = []
        """Called every `times.housekeeping` seconds."""
        self.sampling_rows: dict[str, int] = {}
        """Sequences under way by owner."""
        self.queued: dict[str, list[int]] = {}
        """Operations and bytes in line by owner."""
        self._tasks: set[asyncio.Task[None]] = set()
        first_epoch = int(self.started * 1000)
        self.rooms: dict[Path, EngineRoom] = {}
        self.schedulers: dict[Path, Scheduler] = {}
        self.desks: dict[Path, SamplingDesk] = {}
        for folder in self.catalogue.folders:
            room = self.rooms[folder] = EngineRoom(
                folder, make_link, self.clock, first_epoch, options.times
            )
            scheduler = self.schedulers[folder] = Scheduler(self, room)
            desk = self.desks[folder] = SamplingDesk(room, self.clock.time, scheduler.restores)
            scheduler.restored, desk.put_off = desk.restored, scheduler.fragile
            desk.count_in(self.metrics, self.clock.monotonic)
            room.listeners += [scheduler, desk, Sweeper(self)]
            room.sampled = desk.sampled

    # ---- life

    @property
    def cursor_start(self) -> int:
        """Where the numbers of completions begin: later with every start."""
        return int(self.started * 1000) << 20

    @property
    def ready(self) -> bool:
        """Whether every engine is up."""
        return all(room.up for room in self.rooms.values())

    async def start(self) -> None:
        """Read what is alive from the store and start the engines."""
        from .housekeeping import housekeepers
        from .leftovers import clear_leftovers
        from .startup import load_world

        self.machine_went_down = note_boot(self.options.state, self.options.durability)
        await load_world(self)
        reach("restart: after the store is read")
        await clear_leftovers(self)
        self.housekeepers += housekeepers()
        for room in self.rooms.values():
            room.start()
        self.spawn(self._keep_house())

    async def drain(self) -> None:
        """Take no new work; return when running work has ended and is snapshotted, or had its time."""
        if not self.draining:
            self.draining = True
            self._drained_by = self.clock.monotonic() + self.options.times.drain
            await self._rest()
            # What is not written down yet is not in a model's watermark either.
            await self.settled(max(0.0, self._drained_by - self.clock.monotonic()))
            if self.clock.monotonic() < self._drained_by:
                for scheduler in self.schedulers.values():
                    scheduler.snapshots.take_all()
        await self._rest()

    async def _rest(self) -> None:
        """Wait until no engine is at work, or it has had its time."""
        while self.busy and self.clock.monotonic() < self._drained_by:
            await self.clock.sleep(0.05)

    def release(self) -> None:
        """Answer all polls that are held: there is nothing to wait for here."""
        self.tickets.wake()
        for sampler in self.world.samplers.values():
            for completions in sampler.clones.values():
                completions.bell.ring()

    async def stop(self) -> None:
        """Let running work end, then close everything."""
        await self.drain()
        self.stopping = True
        await self.settled(self.options.times.drain)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for room in self.rooms.values():
            await room.close()
        with contextlib.suppress(StoreFailed):
            await self.usage.flush(self)
        self.samples.close()
        await self.store.close()
        forget_boot(self.options.state)

    @property
    def busy(self) -> bool:
        """Whether an engine is at work on something it could finish."""
        return any(model.under_way for model in self.world.models.values()) or any(
            room.up and (len(self.desks[folder]) or self.schedulers[folder].snapshots.under_way)
            for folder, room in self.rooms.items()
        )

    async def _keep_house(self) -> None:
        while True:
            await self.clock.sleep(self.options.times.housekeeping)
            for job in self.housekeepers:
                try:
                    await job(self)
                except Exception:
                    log.exception("housekeeping failed; it is tried again")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something in the background; it is waited for or called off when the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())

    # ---- numbers that were refused

    def refused(self, ask: Ask, problem: Problem) -> None:
        """A training request was refused for good: its number must not be waited for."""
        if ask.route.lane == "train" and problem.status not in (408, 409, 429) and problem.status < 500:
            model_id, number = getattr(ask.body, "model_id", None), getattr(ask.body, "seq_id", None)
            self.use_up(ask.owner, model_id or "", number or 0)

    def use_up(self, owner: str, model_id: str, number: int) -> None:
        """This number of a model was refused."""
        model = self.world.models.get(model_id)
        if model is not None and model.row.owner == owner and number > 0:
            model.line.use_up(number)
            self.scheduler_of(model).look(model)

    # ---- finding things

    def facts_of(self, base_model: str) -> BaseFacts:
        """A base model by name."""
        return self.catalogue.get(base_model)

    def scheduler_of(self, model: LiveModel) -> Scheduler:
        """The scheduler of a model's engine."""
        return self.schedulers[self.facts_of(model.row.base_model).folder]

    def desk_of(self, base_model: str) -> SamplingDesk:
        """The sampling desk of a base model's engine."""
        return self.desks[self.facts_of(base_model).folder]

    @property
    def patience(self) -> float:
        """Seconds a missing operation is waited for."""
        times = self.options.times
        return times.parallel_hole if self.options.parallel_chunks else times.hole

    # ---- what comes alive

    def open_session(self, row: SessionRow) -> LiveSession:
        """A session comes alive."""
        now = self.clock.monotonic()
        session = self.world.sessions[row.id] = LiveSession(row, now, now)
        return session

    def open_model(self, row: ModelRow, session: LiveSession, *, fresh: bool) -> LiveModel:
        """A model comes alive."""
        line: Line[Operation] = Line(row.watermark + 1)
        model = LiveModel(row, session, line)
        self.world.models[row.id] = session.models[row.id] = model
        self.scheduler_of(model).add(model, fresh=fresh)
        return model

    def open_sampler(self, row: SamplerRow, session: LiveSession | None) -> LiveSampler:
        """A sampling session comes alive."""
        sampler = LiveSampler(row, session, self.cursor_start)
        self.world.samplers[row.id] = sampler
        if session is not None:
            session.samplers[row.id] = sampler
        return sampler

    # ---- operations

    def accept(self, model: LiveModel, row: OperationRow, work: Work | PassWork) -> Operation:
        """Put a new operation in line, with a ticket."""
        ticket = self.tickets.open(row.id, row.kind, row.owner)
        operation = Operation(row.id, model, row.seq, row.kind, row.owner, work, ticket, len(row.body))
        operation.entered, operation.asked_by = self.clock.monotonic(), REQUEST.get()
        held = self.queued.setdefault(row.owner, [0, 0])
        held[0] += 1
        held[1] += operation.size
        model.bytes_since += operation.size
        if work.saves is not None:
            model.saving.add(work.saves)
        if isinstance(work, SaveSamplerWork) and work.sampler is not None:
            model.session.freezing.add(work.sampler.id)
        if row.kind == "unload_model":
            model.unloading = row.id
        self.scheduler_of(model).enter(operation)
        return operation

    async def finish(self, ended: Sequence[tuple[Operation, Outcome]], also: Sequence[Change] = ()) -> None:
        """Write down what has ended and other changes after it, then tell those who wait."""
        now = self.clock.time()
        changes: list[Change] = []
        for operation, outcome in ended:
            operation.ending = True
            row = operation.model.row
            row.watermark = max(row.watermark, operation.seq)
            changes += outcome.changes
            changes.append(
                Finish(
                    operation.id, "failed" if outcome.failed else "done", now, row.id, row.watermark,
                    outcome.result, outcome.form, outcome.error, outcome.category,
                )
            )  # fmt: skip
            if isinstance(operation.work, PassWork) and not outcome.failed:
                self.usage.add(self, operation.model, "training", operation.work.tokens)
                self.metrics.tokens["trained"] += operation.work.tokens
        reach("operation: before its end is written")
        # Whoever changes a checkpoint that is saved over must not write back the one before it.
        over = [each.owner for each, _ in ended if each.work.saves in each.model.saved]
        async with self.turns.all_of(over):
            await self.keep(*changes, *also)
        reach("operation: after its end is written")
        for operation, outcome in ended:
            self._ended(operation, outcome, now)

    def _ended(self, operation: Operation, outcome: Outcome, now: float) -> None:
        held = self.queued[operation.owner]
        held[0] -= 1
        held[1] -= operation.size
        work = operation.work
        if work.saves is not None:
            operation.model.saving.discard(work.saves)
            if not outcome.failed:
                self._saved(operation.model, outcome)
        if isinstance(work, SaveSamplerWork):
            if work.sampler is not None:
                operation.model.session.freezing.discard(work.sampler.id)
            if not outcome.failed:
                self._frozen(operation, work)
        if operation.model.unloading == operation.id:
            operation.model.unloading = None
        ticket = operation.ticket
        if outcome.failed:
            ticket.failed(outcome.error, outcome.category, now)
        else:
            ticket.done(outcome.result, outcome.form, now)
        self.tickets.ended(ticket)
        if operation.kind == "unload_model" and not outcome.failed:
            operation.model.open = False  # the engine has let go of it
            self.drop_model(operation.model, "the model was unloaded")
            self.spawn(self.remove_folder(self.folders.snapshot(operation.model.id, 0).parent))

    def _saved(self, model: LiveModel, outcome: Outcome) -> None:
        """A checkpoint is there; the files of one it took the place of go."""
        self.usage.add(self, model, "checkpoint", 1)
        for change in outcome.changes:
            if isinstance(change, Put) and isinstance(change.row, CheckpointRow):
                row = change.row
                before, model.saved[row.path] = model.saved.get(row.path), row.folder
                if before is not None and before != row.folder:
                    self.spawn(discard(self, before))

    def _frozen(self, operation: Operation, work: SaveSamplerWork) -> None:
        model, desk = operation.model, self.desk_of(operation.model.row.base_model)
        if work.epoch == desk.room.epoch:  # else the engine that has them died while this was written
            desk.frozen(work.version)
        if work.sampler is None or work.sampler.id in self.world.samplers:
            return
        if model.session.row.id in self.world.sessions:
            self.open_sampler(work.sampler, model.session)
        else:  # its session has ended meanwhile
            thaw(self, work.version)

    def drop_model(self, model: LiveModel, reason: str, gone: Callable[[], None] = lambda: None) -> None:
        """A model is no longer alive; `gone` is called when its engine is done with it."""
        self.world.models.pop(model.id, None)
        model.session.models.pop(model.id, None)
        self.scheduler_of(model).remove(model, reason, gone)

    async def corrupt(self, model: LiveModel, trouble: str) -> None:
        """A model cannot be trusted any more: say so, and fail what it has in line."""
        trouble = f"{trouble}; {await advice(self, model)}".replace(f"{self.options.state}{os.sep}", "")
        log.error("model %s is corrupted: %s", model.id, trouble)
        model.row.state, model.row.note = "corrupted", trouble
        self.world.models.pop(model.id, None)
        model.session.models.pop(model.id, None)
        scheduler = self.scheduler_of(model)
        scheduler.models.pop(model.id, None)
        self.trouble.ends(model.id)
        scheduler.restored(model.id)
        scheduler.room.tell(Unload(scheduler.room.epoch, scheduler.room.next_name(), model.id))
        ended = [
            (operation, Outcome(error=f"model {model.id} is corrupted: {trouble}", category="server"))
            for operation in model.line.clear()
        ]
        await self.keep(Put(model.row))
        if ended:
            await self.finish(ended)

    async def work_again(self, model: LiveModel, row: OperationRow) -> Work | PassWork | None:
        """What a stored operation did to its model, to be done again; None: nothing.

        Weights frozen without a name may not have been written before the engine died.
        """
        if row.kind == "save_weights_for_sampler" and read_operation(row).path is None:
            return SaveSamplerWork()
        if row.kind.startswith("save_"):
            return None  # and what it was saved under may have been saved again since
        work = await make_work(self, model, row.kind, read_operation(row), row, again=True)
        return work if work.changes_weights else None

    # ---- files and signs of life

    async def remove_folder(self, folder: Path) -> None:
        """Delete files in the background of everything else; rows that lead elsewhere delete nothing."""
        if not is_inside(self.options.state, folder):
            log.error("%s is not in the state folder; it is left alone", folder)
            return
        await asyncio.to_thread(shutil.rmtree, folder, True)

    def heard(self, session: LiveSession) -> None:
        """A session's client is there; it is written down now and then."""
        now = self.clock.monotonic()
        session.heard = now
        if now - session.written > 60.0:
            session.written = now
            session.row.last_seen = self.clock.time()
            self.spawn(self.keep(Seen(session.row.id, session.row.last_seen)))


def loss_of(definition: str) -> CreateCustomLossRequest:
    """A custom loss from its stored definition."""
    return decode(CreateCustomLossRequest, definition.encode())
