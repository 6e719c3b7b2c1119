"""What the engine does to models: create, train, step, save, load, export.

Each operation is a generator that gives way between pieces of long work and ends with its answer. Names of
models come from the control plane; where their tensors are is the pool's business, and sampling is not
known here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from .adapters import Adapter
from .background import BackgroundWriter
from .base_model import BaseModel
from .checkpoints import StateCopy, load_sampler, load_state, save_state
from .faults import EngineFault, UserFault
from .kill_points import reach
from .messages import (
    Answer,
    CreateAdapter,
    Done,
    DropSampler,
    Export,
    ExportSaved,
    Failed,
    KeepSamplers,
    LoadSampler,
    LoadState,
    OptimStep,
    PartFailure,
    PartResult,
    SaveSampler,
    SaveState,
    Train,
    TrainDone,
    TrainPart,
    Unload,
)
from .peft_format import CONFIG, export_peft, import_peft
from .pool import AdapterPool
from .sampler_weights import SamplerWeights
from .tensor_files import in_words
from .trainer import Trainer, TrainState

log = logging.getLogger(__name__)
Work = Generator[None, None, Answer | None]
"""Ends with the answer, or with None where it comes later."""
OPTIMIZERS = ("adamw",)


class Operations:
    """The models of one engine."""

    def __init__(
        self,
        base: BaseModel,
        trainer: Trainer,
        weights: SamplerWeights,
        *,
        epoch: int,
        max_rank: int,
        device_bytes: int,
        host_bytes: int | None,
        folder: Path | None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.base, self.trainer, self.weights = base, trainer, weights
        self.epoch, self.max_rank = epoch, max_rank
        self.pool: AdapterPool[TrainState] = AdapterPool(
            base.device,
            device_bytes=device_bytes,
            host_bytes=host_bytes,
            folder=folder,
            write=lambda path, state: save_state(path, state, with_gradient=True),
            read=lambda path: load_state(path, base),
        )
        self.later = BackgroundWriter(wake)
        self._handlers: dict[type, Callable[[Any], Answer | Work | None]] = {
            CreateAdapter: self._create,
            LoadState: self._load,
            Train: self._train,
            OptimStep: self._optim_step,
            SaveState: self._save,
            SaveSampler: self._save_sampler,
            LoadSampler: self._load_sampler,
            KeepSamplers: self._keep_samplers,
            Export: self._export,
            ExportSaved: self._export_saved,
            Unload: self._unload,
            DropSampler: self._drop_sampler,
        }

    def start(self, message: object) -> Work:
        """The work a message asks for; nothing of it is done before the first step."""
        found = self._handlers[type(message)](message)
        return (yield from found) if isinstance(found, Generator) else found

    def _state(self, model: str) -> TrainState:
        if model not in self.pool:
            raise UserFault(f"no model {model!r} here: create or load it first")
        return self.pool.get(model)

    def _done(self, request_id: str, **facts: float | int | str | bool | None) -> Done:
        return Done(self.epoch, request_id, facts)

    def _check_rank(self, rank: int) -> None:
        if not 1 <= rank <= self.max_rank:
            raise UserFault(f"rank must be between 1 and {self.max_rank}, got {rank}")

    def _create(self, message: CreateAdapter) -> Answer:
        if message.optimizer not in OPTIMIZERS:
            raise UserFault(f"optimizer {message.optimizer!r} is not supported; {OPTIMIZERS[0]!r} is")
        if message.model in self.pool:
            raise UserFault(f"model {message.model!r} exists already")
        self._check_rank(message.rank)
        adapter = self.base.new_adapter(
            message.rank,
            seed=message.seed,
            attn=message.train_attn,
            mlp=message.train_mlp,
            unembed=message.train_unembed,
        )
        reach("engine: before a model is made")
        self.pool.add(message.model, TrainState(adapter))
        size = adapter.layout.per_rank * adapter.rank
        return self._done(message.request_id, rank=adapter.rank, parameters=size, seed=adapter.seed)

    def _load(self, message: LoadState) -> Answer:
        folder = Path(message.path)
        if (folder / CONFIG).is_file():
            if message.with_optimizer:
                raise UserFault("a PEFT adapter has no optimizer state; load its weights alone")
            state = TrainState(import_peft(folder, self.base))
        else:
            state = load_state(folder, self.base, with_optimizer=message.with_optimizer)
        self._check_rank(state.adapter.rank)
        self.pool.add(message.model, state)
        return self._done(message.request_id, rank=state.adapter.rank, step=state.steps)

    def _train(self, message: Train) -> Work:
        if not message.parts:
            raise UserFault("a pass needs at least one part")
        answers = yield from self._pass(message.parts)
        return TrainDone(self.epoch, message.request_id, tuple(answers))

    def _pass(self, parts: Sequence[TrainPart]) -> Generator[None, None, list[PartResult | PartFailure]]:
        """Train parts as one; where their models do not fit side by side, some after the others."""
        names = list(dict.fromkeys(part.model for part in parts if part.model in self.pool))
        held: dict[str, TrainState] = {}
        lost: PartFailure | None = None
        try:
            held = dict(zip(names, self.pool.use(names), strict=True))
        except Exception as error:
            lost = self._lost(names, error)
        if lost is not None and len(names) > 1:
            early = set(names[: len(names) // 2])
            first = iter((yield from self._pass([part for part in parts if part.model in early])))
            rest = iter((yield from self._pass([part for part in parts if part.model not in early])))
            return [next(first if part.model in early else rest) for part in parts]
        if lost is not None:
            return [lost if part.model in names else self._unknown(part) for part in parts]
        given = [(held[part.model], part) for part in parts if part.model in held]
        results = iter((yield from self.trainer.by_micro_batch(given))) if given else iter(())
        return [next(results) if part.model in held else self._unknown(part) for part in parts]

    def _lost(self, names: list[str], error: Exception) -> PartFailure:
        """Why models could not be brought to the device."""
        log.warning("%s cannot be brought to the device: %r", ", ".join(names), error)
        fault = in_words(error) or error
        if isinstance(fault, EngineFault):
            return PartFailure(fault.category, str(fault))
        return PartFailure("server", f"{type(error).__name__}: {error}")

    def _unknown(self, part: TrainPart) -> PartFailure:
        return PartFailure("user", f"no model {part.model!r} here: create or load it first")

    def _optim_step(self, message: OptimStep) -> Answer:
        reach("engine: before a step")
        metrics = self.trainer.optim_step(self._state(message.model), message.params)
        reach("engine: after a step")
        return Done(self.epoch, message.request_id, {}, metrics)

    def _save(self, message: SaveState) -> Answer | None:
        state = self._state(message.model)
        if message.background:
            self._save_later(message, state)
            return None
        # Weights frozen before a snapshot are not frozen again by a replay of what came after it.
        self.weights.wait()
        size = save_state(
            message.path,
            state,
            with_optimizer=message.with_optimizer,
            with_gradient=message.with_gradient,
        )
        return self._done(message.request_id, path=message.path, bytes=size, step=state.steps)

    def _save_later(self, message: SaveState, state: TrainState) -> None:
        copied = StateCopy(
            state, with_optimizer=message.with_optimizer, with_gradient=message.with_gradient
        )
        steps = state.steps

        def write() -> Answer:
            try:
                self.weights.wait()
                size = copied.save(message.path)
            except Exception as error:
                fault = in_words(error)
                category, text = (
                    ("disk", str(fault)) if fault else ("server", f"{type(error).__name__}: {error}")
                )
                return Failed(self.epoch, message.request_id, category, text)
            return self._done(message.request_id, path=message.path, bytes=size, step=steps)

        self.later.begin(message.model, copied.nbytes, write)

    def _save_sampler(self, message: SaveSampler) -> Answer:
        path = None if message.path is None else Path(message.path)
        version = self.weights.freeze(message.model, self._state(message.model).adapter, path)
        reach("engine: after weights are frozen")
        place = path or self.weights.where(version)
        size = {} if path is None else {"bytes": sum(each.stat().st_size for each in path.iterdir())}
        found = None if place is None else str(place)
        return self._done(message.request_id, version=version, path=found, **size)

    def _load_sampler(self, message: LoadSampler) -> Answer:
        version = self.weights.load(
            Path(message.path), version=message.version, ephemeral_of=message.ephemeral_of
        )
        return self._done(message.request_id, version=version, path=message.path)

    def _keep_samplers(self, message: KeepSamplers) -> Answer:
        return self._done(message.request_id, removed=self.weights.remove_others(message.versions))

    def _export(self, message: Export) -> Answer:
        return self._export_adapter(message, self._state(message.model).adapter)

    def _export_saved(self, message: ExportSaved) -> Answer:
        return self._export_adapter(message, read_sampler(self.base)(Path(message.source)))

    def _export_adapter(self, message: Export | ExportSaved, adapter: Adapter) -> Answer:
        size = export_peft(message.path, adapter, base_name=message.base_name or None)
        return self._done(message.request_id, path=message.path, bytes=size)

    def _unload(self, message: Unload) -> Answer:
        if message.model not in self.pool:
            raise UserFault(f"no model {message.model!r} here")
        self.later.wait(message.model)  # who has it unloaded may remove its files
        self.pool.drop(message.model)
        return self._done(message.request_id)

    def _drop_sampler(self, message: DropSampler) -> Answer:
        self.weights.drop(message.version)
        return self._done(message.request_id)


def read_sampler(base: BaseModel) -> Callable[[Path], Adapter]:
    """How sampler weights come back from a folder: ours, or PEFT's."""

    def read(folder: Path) -> Adapter:
        if (folder / CONFIG).is_file():
            return import_peft(folder, base)
        return load_sampler(folder, base)

    return read
