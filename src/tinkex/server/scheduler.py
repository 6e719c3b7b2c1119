"""Whose operation is next: order within a model, fairness between models, joined passes.

A round is one joined pass of all models that have one ready, up to a token budget, followed by those
models' next operations that are not passes (optimizer steps, saves). The engine works through a round in
order, so an optimizer step is told to it without waiting for the pass before. A new round is begun as soon
as no pass is under way: while the engine takes the last optimizer steps, the next passes are on their way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..engine.messages import (
    Answer,
    Done,
    Failed,
    PartFailure,
    PartResult,
    Train,
    TrainDone,
    Unload,
)
from .disk import short_of_room
from .ends import Ends
from .engine_room import EngineRoom
from .operations import Operation, Outcome, PassWork, UnloadWork
from .recovery import Unreadable, recover
from .snapshots import Snapshots
from .store import Put, StoreFailed
from .trials import works
from .world import LiveModel

if TYPE_CHECKING:
    from .service import Service

log = logging.getLogger(__name__)
JOINED_TOKENS = {"cpu": 8192}
DEFAULT_JOINED_TOKENS = 65536
LONGEST_PAUSE = 30.0
"""Seconds after which a full disk is looked at again."""
DISK = "disk"
"""What engines call failures that pass when the disk can be written again."""
MOST_DEATHS = 5
"""An engine that dies so often over one operation, or over restoring one model, is spared it."""
_LOST = (
    "the machine went down and operation {} was lost, and perhaps more; with --durability power a server "
    "keeps what its clients were told"
)


class Scheduler:
    """The training side of one engine room."""

    def __init__(self, service: Service, room: EngineRoom) -> None:
        self.service, self.room = service, room
        self.models: dict[str, LiveModel] = {}
        self._ready: OrderedDict[str, LiveModel] = OrderedDict()
        """Models with an operation the engine could take now; who was served goes to the back."""
        self._training = False
        self._suspect: Operation | None = None
        """The operation that runs alone because the engine died while it had it."""
        self._restoring: LiveModel | None = None
        self._under_way: dict[str, list[Operation]] = {}
        """By model, what the engine was told and has not answered, in order."""
        self._ends = Ends(service)
        self.snapshots = self._ends.snapshots = Snapshots(service, room, self.models, self._ends.write_soon)
        self._recovering: asyncio.Task[None] | None = None
        self.restored: Callable[[str], None] = lambda model_id: None
        """Told when a model is restored, or given up."""

    # ---- models

    def add(self, model: LiveModel, *, fresh: bool) -> None:
        """Take a model in; one that is not fresh is recovered before it is used."""
        self.models[model.id] = model
        model.open = fresh and self.room.up
        if not model.open:
            self._recover()

    def remove(self, model: LiveModel, reason: str, gone: Callable[[], None] = lambda: None) -> None:
        """Let a model go, `gone` is called when the engine has; what it still has in line fails."""
        self.models.pop(model.id, None)
        self.restored(model.id)
        self._ready.pop(model.id, None)
        for operation in model.line.clear():
            self._end(operation, Outcome(error=reason, category="user"))
        unload = Unload(self.room.epoch, self.room.next_name(), model.id)
        if not model.open or not self.room.tell(unload, lambda answer: gone()):
            gone()
        model.open = False

    def restores(self, model_id: str) -> bool:
        """Whether a model is being restored, or waits for it."""
        model = self.models.get(model_id)
        return model is not None and not model.open

    def fragile(self) -> bool:
        """Whether a model is to be restored over which an engine died: what else it did may be to blame."""
        under_way = self._recovering is not None and not self._recovering.done()
        return under_way and any(model.deaths for model in self._closed())

    def _closed(self) -> Iterator[LiveModel]:
        """Models to be restored now."""
        return (each for each in self.models.values() if not each.open and not each.paused)

    def enter(self, operation: Operation) -> None:
        """Put an operation in its model's line."""
        model = operation.model
        model.line.enter(operation.seq, operation)
        self.look(model)

    def look(self, model: LiveModel) -> None:
        """See whether a model has something to do, or waits for a number that does not come."""
        if model.line.head() is not None:
            free = model.open and not model.paused and model.writing is None
            if free and model.id not in self._ready:
                self._ready[model.id] = model
            self.kick()
        self._watch(model)

    def _watch(self, model: LiveModel) -> None:
        """Begin to wait for a number that is missing, if one is."""
        missing = model.line.missing
        if missing is not None and model.watching != missing:
            model.watching = missing
            self.service.clock.call_later(self.service.patience, lambda: self._give_up(model, missing))

    def _give_up(self, model: LiveModel, missing: int) -> None:
        if model.watching == missing:
            model.watching = None
        if model.line.missing != missing or model.id not in self.models:
            return
        known = model.known_upto
        # Where requests arrive in order they are written in order: nothing is lost before what is known.
        if known is not None and (missing > known or self.service.options.parallel_chunks):
            # Its client may have been told that it is done: a model without it is another model.
            self.service.spawn(self.service.corrupt(model, _LOST.format(missing)))
            return
        gone = model.line.skip()
        row = model.row
        row.skipped = [each for each in row.skipped if each > row.watermark] + gone  # others are passed
        log.warning("model %s goes on without operations %s: they never came", model.id, gone)
        self.service.spawn(self.service.keep(Put(row)))
        self.look(model)

    def queue_reason(self, model: LiveModel) -> str:
        """Why a model's operations wait, for people; empty: they do not wait for anything special."""
        if not self.room.up:
            return self.room.reason
        if model.paused:
            return model.paused
        if not model.open:
            return "the model is being restored after a restart"
        missing = model.line.missing
        return f"operation {missing} of this model has not arrived" if missing is not None else ""

    # ---- rounds

    def kick(self) -> None:
        """Begin rounds while the engine can take one; one without a pass leaves it free for the next."""
        while self._ready and not self._training and self._suspect is None and self._may_begin:
            models = self._next_models()
            if not models:
                return
            self._round(models)

    @property
    def _may_begin(self) -> bool:
        """Whether new work may be begun; what waits when the server stops is for the next one."""
        return self.room.up and not self.service.draining

    def _round(self, models: Sequence[LiveModel]) -> None:
        kind = str(self.room.facts.get("device", "cpu")).partition(":")[0]
        left = JOINED_TOKENS.get(kind, DEFAULT_JOINED_TOKENS)
        passes: list[Operation] = []
        after: list[Operation] = []
        for model in models:
            room_left = left
            taken = False
            while self._suspect is None and (operation := model.line.head()) is not None:
                work = operation.work
                if work.saves is not None and (short := short_of_room(self.service.options)):
                    self.pause(model, short)
                    break
                if isinstance(work, PassWork):
                    if after and after[-1].model is model:
                        break
                    tokens = work.tokens
                    if tokens > room_left and passes:
                        break
                    room_left -= tokens
                    passes.append(operation)
                else:
                    after.append(operation)
                taken = True
                model.line.take()
                operation.begun = self.service.clock.monotonic()
                if operation.deaths:
                    self._suspect = operation
                self._under_way.setdefault(model.id, []).append(operation)
                model.under_way += 1
                if work.saves is not None:
                    model.writing = operation
                    self._ready.pop(model.id, None)
                if isinstance(work, UnloadWork) or work.saves is not None:
                    break
            left = room_left
            if model.line.head() is None:
                self._ready.pop(model.id, None)
                self._watch(model)
            elif taken and model.id in self._ready:
                self._ready.move_to_end(model.id)
        self._tell(passes, after)

    def _next_models(self) -> list[LiveModel]:
        """Who takes part in a round: one model alone if the engine may have died of its operation.

        Such a one waits until all models are restored, so that nothing else is near when it runs.
        """
        models = list(self._ready.values())
        suspects = [model for model in models if (head := model.line.head()) is not None and head.deaths]
        if suspects and not all(model.open or model.paused for model in self.models.values()):
            return [model for model in models if model not in suspects]
        return suspects[:1] or models

    def _tell(self, passes: Sequence[Operation], after: Sequence[Operation]) -> None:
        room = self.room
        if passes:
            parts = tuple(
                operation.work.part for operation in passes if isinstance(operation.work, PassWork)
            )
            name = room.next_name()
            if log.isEnabledFor(logging.DEBUG):  # the engine's lines call the joined pass by this name
                who = ", ".join(f"{each.id} of request {each.asked_by or '-'}" for each in passes)
                log.debug("pass %s: %s", name, who)
            self._training = room.tell(
                Train(room.epoch, name, parts), lambda answer: self._trained(passes, answer)
            )
            self.snapshots.after(passes, after)
        for operation in after:
            work = operation.work
            assert not isinstance(work, PassWork)
            message = work.message(room.epoch, operation.id, operation.model.row)
            room.tell(message, lambda answer, operation=operation: self._worked(operation, answer))  # type: ignore[misc]
            self.snapshots.told(operation)

    def _trained(self, passes: Sequence[Operation], answer: Answer) -> None:
        if isinstance(answer, Failed) and answer.epoch < 0:
            return  # the engine is gone; everything under way is begun anew
        self._training = False
        if isinstance(answer, TrainDone):
            for operation, part in zip(passes, answer.parts, strict=True):
                assert isinstance(operation.work, PassWork)
                if isinstance(part, PartResult):
                    self._end(operation, operation.work.done(part))
                else:
                    self._end(operation, _failed(part))
        else:
            assert isinstance(answer, Failed)
            for operation in passes:
                self._end(operation, _failed(answer))
        self.kick()

    def _worked(self, operation: Operation, answer: Answer) -> None:
        if isinstance(answer, Failed):
            if answer.epoch < 0:
                return
            if answer.category == DISK and operation.model.writing is operation:
                self._do_again(operation, answer.text)
            else:
                self._end(operation, _failed(answer))
            return
        assert isinstance(answer, Done)
        work = operation.work
        assert not isinstance(work, PassWork)
        self._end(operation, work.done(answer, operation.model.row, self.service.clock.time()))

    # ---- waiting for the disk

    def pause(self, model: LiveModel, reason: str) -> None:
        """Let a model wait for the disk: longer from time to time, until it can go on."""
        seconds = min(LONGEST_PAUSE, float(1 << min(model.pauses, 10)))
        log.error("model %s waits: %s; trying again in %.0f s", model.id, reason, seconds)
        model.paused, model.pauses = reason, model.pauses + 1
        self.service.trouble.begins(model.id, reason)
        self._ready.pop(model.id, None)
        self.service.clock.call_later(seconds, lambda: self._go_on(model))

    def _go_on(self, model: LiveModel) -> None:
        model.paused = ""
        if self.models.get(model.id) is not model:
            self.service.trouble.ends(model.id)
        elif model.open:
            self.look(model)
        else:
            self._recover()

    def _do_again(self, operation: Operation, reason: str) -> None:
        """A save for which the disk had no room goes back to the head of its line."""
        model = operation.model
        if self.models.get(model.id) is not model:  # it was unloaded meanwhile
            self._end(operation, Outcome(error=reason, category="server"))
            return
        self._leave(operation)
        model.line.put_back(operation.seq, operation)
        self.pause(model, reason)

    # ---- endings

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        model = operation.model
        self._count(operation, outcome)
        if model.known_upto is not None and operation.seq > model.known_upto:
            model.known_upto = None  # its client goes on where the store ends
        if model.writing is operation:
            model.pauses = 0
            self.service.trouble.ends(model.id)
        self._leave(operation)
        self._ends.add(operation, outcome)

    def _leave(self, operation: Operation) -> None:
        """The engine is through with an operation."""
        model, loop = operation.model, asyncio.get_running_loop()
        if operation is self._suspect:
            self._suspect = None
            loop.call_soon(self.kick)
        if model.writing is operation:
            model.writing = None
            loop.call_soon(self.look, model)
        waiting = self._under_way.get(model.id)
        if waiting and operation in waiting:
            waiting.remove(operation)
            model.under_way -= 1
        if not waiting:
            self._under_way.pop(model.id, None)

    def _count(self, operation: Operation, outcome: Outcome) -> None:
        begun, now = operation.begun, self.service.clock.monotonic()
        queued, worked = (0.0, -1.0) if begun is None else (begun - operation.entered, now - begun)
        self.service.metrics.ended(operation.kind, outcome.category or "done", queued, worked)
        if outcome.failed:
            level = logging.INFO if outcome.category == "user" else logging.ERROR
            text = "operation %s (%s) of request %s failed: %s"
            log.log(level, text, operation.id, operation.kind, operation.asked_by or "-", outcome.error)

    # ---- the engine's comings and goings

    def engine_up(self) -> None:
        """A new engine: bring the models back."""
        self._recover()

    def engine_lost(self, reason: str) -> None:
        """Put back what was under way, in order; it runs again once its model is restored."""
        self._training = False
        self._ready.clear()
        suspect, self._suspect = self._suspect, None
        if self._restoring is not None:
            self._restoring.deaths += 1
        for model in self.models.values():
            model.open, model.writing = False, None
            back = self._under_way.pop(model.id, [])
            model.under_way = 0
            for operation in reversed(back):
                operation.deaths += 1
                if operation is suspect and operation.deaths > MOST_DEATHS:
                    text = f"the engine died {operation.deaths} times while it ran this ({reason})"
                    self._end(operation, Outcome(error=text, category="server"))
                else:
                    model.line.put_back(operation.seq, operation)
        for name in list(self._under_way):  # models that were removed while the engine was at work
            for operation in self._under_way.pop(name):
                text = f"the engine died ({reason}) and the model is no longer loaded"
                self._end(operation, Outcome(error=text, category="server"))

    def _recover(self) -> None:
        if self.room.up and (self._recovering is None or self._recovering.done()):
            self._recovering = self.service.spawn(self._bring_back())

    async def _bring_back(self) -> None:
        while self.room.up:
            epoch = self.room.epoch
            model = next(self._closed(), None)
            if model is None:
                self.kick()
                return
            if model.deaths >= MOST_DEATHS and not await works(self.room):
                # A broken device: no model is to blame, and none is given up.
                log.error("the engine dies of whatever it does; models wait until one stays up")
                for each in self.models.values():
                    each.deaths = 0
                continue
            if model.id not in self.models or self.room.epoch != epoch:
                continue
            if model.deaths >= MOST_DEATHS:
                text = f"the engine died {model.deaths} times while it was restored"
                await self.service.corrupt(model, text)
                continue
            # What has ended must be written before the store is asked what there is to replay.
            await self.service.settled()
            self._restoring = model
            try:
                trouble = await recover(self.service, self.room, model)
            except (StoreFailed, Unreadable) as problem:
                if self.room.epoch == epoch:
                    self.pause(model, f"the model cannot be restored yet: {problem}")
                    self.restored(model.id)
                continue
            finally:
                self._restoring = None
            if self.room.epoch != epoch:
                continue  # that engine is gone; what it was told is to be told to the next
            if model.id not in self.models:  # it was unloaded meanwhile
                self.room.tell(Unload(epoch, self.room.next_name(), model.id))
                continue
            if trouble:
                await self.service.corrupt(model, trouble)
                continue
            model.open, model.deaths, model.pauses = True, 0, 0
            self.service.trouble.ends(model.id)
            self.restored(model.id)
            self.look(model)


def _failed(answer: Failed | PartFailure) -> Outcome:
    category = "server" if answer.category == DISK else answer.category
    return Outcome(error=answer.text, category=category)
