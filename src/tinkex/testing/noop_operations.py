"""What `NoopEngine` does to models: everything but arithmetic.

What a model has been through is kept as a digest and shows in its numbers: a pass that was lost or run
twice changes every later loss and version.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.messages import (
    Answer,
    Array,
    CreateAdapter,
    Datum,
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
    Request,
    SaveSampler,
    SaveState,
    Scalar,
    SparseRows,
    Train,
    TrainDone,
    TrainPart,
    Unload,
)
from .noop_sampling import LOGPROB
from .tiny_models import write_safetensors

LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "custom")
FILE = "adapter.json"


class Refused(Exception):
    """An operation that an engine would refuse."""


@dataclass(frozen=True, slots=True)
class NoopModel:
    """What is left of a model when nothing is computed: its shape, and a digest of what it went through."""

    rank: int
    seed: int
    parts: tuple[bool, bool, bool] = (True, True, True)
    steps: int = 0
    weights: str = ""
    gradient: str = ""

    @property
    def version(self) -> str:
        """What its weights are called once frozen."""
        return _digest(self.rank, self.seed, self.parts, self.weights)

    @property
    def logprob(self) -> float:
        """The logprob of every token: -0.5 before any training."""
        return LOGPROB - (int(self.weights[:4], 16) / 65536 if self.weights else 0.0)


class NoopOperations:
    """The models and frozen versions of one engine."""

    context: int
    epoch: int
    folder: Path | None
    max_rank: int

    def __init__(self, epoch: int, context: int, max_rank: int, folder: Path | None) -> None:
        self.epoch, self.context, self.max_rank, self.folder = epoch, context, max_rank, folder
        self.models: dict[str, NoopModel] = {}
        self.versions: dict[str, NoopModel] = {}
        self._unwritten: dict[Path, NoopModel] = {}
        self._handlers: dict[type, Callable[[Any], Answer]] = {
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

    def run(self, message: Request) -> Answer:
        """Do what a message asks for."""
        try:
            return self._handlers[type(message)](message)
        except Refused as refusal:
            return Failed(self.epoch, message.request_id, "user", str(refusal))
        except OSError as error:
            text = f"the server's disk cannot be written: {error.strerror}"
            return Failed(self.epoch, message.request_id, "disk", text)
        except Exception as error:
            return Failed(self.epoch, message.request_id, "server", f"{type(error).__name__}: {error}")

    def _model(self, name: str) -> NoopModel:
        if name not in self.models:
            raise Refused(f"no model {name!r} here: create or load it first")
        return self.models[name]

    def _done(self, message: Request, **facts: Scalar) -> Done:
        return Done(self.epoch, message.request_id, facts)

    def _create(self, message: CreateAdapter) -> Answer:
        if message.model in self.models:
            raise Refused(f"model {message.model!r} exists already")
        if not 1 <= message.rank <= self.max_rank:
            raise Refused(f"rank must be between 1 and {self.max_rank}, got {message.rank}")
        parts = (message.train_attn, message.train_mlp, message.train_unembed)
        model = NoopModel(message.rank, message.seed or 0, parts)
        self.models[message.model] = model
        return self._done(message, rank=model.rank, parameters=model.rank * 1000, seed=model.seed)

    def _load(self, message: LoadState) -> Answer:
        model = _read(Path(message.path))
        if not message.with_optimizer:
            model = replace(model, steps=0, gradient="")
        self.models[message.model] = model
        return self._done(message, rank=model.rank, step=model.steps)

    def _train(self, message: Train) -> Answer:
        if not message.parts:
            raise Refused("a pass needs at least one part")
        return TrainDone(self.epoch, message.request_id, tuple(map(self._part, message.parts)))

    def _part(self, part: TrainPart) -> PartResult | PartFailure:
        try:
            model = self._model(part.model)
            if part.loss not in LOSSES:
                raise Refused(f"unknown loss {part.loss!r}; use one of {', '.join(LOSSES)}")
            if not part.data:
                raise Refused("no data: a pass needs at least one datum")
            shapes = [self._targets(number, datum) for number, datum in enumerate(part.data)]
        except Refused as refusal:
            return PartFailure("user", str(refusal))
        outputs: list[dict[str, Array]] = [
            {"logprobs": np.full(shape, model.logprob, np.float32)} for shape in shapes
        ]
        weight = sum(_weight(datum, shape) for datum, shape in zip(part.data, shapes, strict=True))
        tokens = sum(len(datum.tokens) for datum in part.data)
        metrics = {"loss:sum": -model.logprob * weight, "tokens:sum": float(tokens)}
        if not part.forward_only:
            seen = [_bytes(x) for datum in part.data for x in (datum.tokens, *datum.inputs.values())]
            gradient = _digest(model.gradient, part.loss, *seen)
            self.models[part.model] = replace(model, gradient=gradient)
        return PartResult(tuple(outputs), metrics)

    def _targets(self, number: int, datum: Datum) -> tuple[int, ...]:
        targets = datum.inputs.get("target_tokens")
        if datum.media:
            raise Refused(
                f"datum {number} holds {', '.join(datum.media)} input; this model reads text only"
            )
        if targets is None:
            raise Refused(f"datum {number} has no loss_fn_inputs['target_tokens'], which others have")
        if len(datum.tokens) > self.context:
            raise Refused(f"datum {number} has {len(datum.tokens)} tokens > context {self.context}")
        return tuple(targets.shape)

    def _optim_step(self, message: OptimStep) -> Answer:
        model = self._model(message.model)
        weights = _digest(model.weights, model.gradient, sorted(message.params.items()))
        model = replace(model, steps=model.steps + 1, weights=weights, gradient="")
        self.models[message.model] = model
        rate = float(message.params.get("learning_rate") or 0.0)
        metrics = {"grad_norm:max": 1.0, "learning_rate:max": rate, "step:max": float(model.steps)}
        return Done(self.epoch, message.request_id, {}, metrics)

    def _save(self, message: SaveState) -> Answer:
        model = self._model(message.model)
        while self._unwritten:
            place, frozen = next(iter(self._unwritten.items()))
            _write(place, frozen)
            del self._unwritten[place]
        kept = model if message.with_gradient else replace(model, gradient="")
        if not message.with_optimizer:
            kept = replace(kept, steps=0)
        size = _write(Path(message.path), kept)
        return self._done(message, path=message.path, bytes=size, step=model.steps)

    def _save_sampler(self, message: SaveSampler) -> Answer:
        model = replace(self._model(message.model), gradient="", steps=0)
        path = None if message.path is None else Path(message.path)
        if path is not None:
            _write(path, model)
        elif self.folder is not None:
            path = self.folder / "sampler" / model.version
            try:
                _write(path, model)
            except OSError:  # they stay in memory, and are written before the next snapshot
                self._unwritten[path] = model
        self.versions[model.version] = model
        size = {"bytes": (path / FILE).stat().st_size} if message.path and path is not None else {}
        where = None if path is None else str(path)
        return self._done(message, version=model.version, path=where, **size)

    def _load_sampler(self, message: LoadSampler) -> Answer:
        model = replace(_read(Path(message.path)), gradient="", steps=0)
        if message.version not in (None, model.version):
            text = f"the weights at {message.path} are {model.version}, expected {message.version}"
            return Failed(self.epoch, message.request_id, "server", text)
        self.versions[model.version] = model
        return self._done(message, version=model.version, path=message.path)

    def _keep_samplers(self, message: KeepSamplers) -> Answer:
        removed = 0
        if self.folder is not None and (self.folder / "sampler").is_dir():
            for place in (self.folder / "sampler").iterdir():
                if place.name not in message.versions and place.name not in self.versions:
                    shutil.rmtree(place)
                    removed += 1
        return self._done(message, removed=removed)

    def _export(self, message: Export) -> Answer:
        size = _write_peft(Path(message.path), self._model(message.model), message.base_name)
        return self._done(message, path=message.path, bytes=size)

    def _export_saved(self, message: ExportSaved) -> Answer:
        size = _write_peft(Path(message.path), _read(Path(message.source)), message.base_name)
        return self._done(message, path=message.path, bytes=size)

    def _unload(self, message: Unload) -> Answer:
        self._model(message.model)
        del self.models[message.model]
        return self._done(message)

    def _drop_sampler(self, message: DropSampler) -> Answer:
        if message.version not in self.versions:
            raise Refused(f"no sampler weights {message.version!r} here")
        del self.versions[message.version]
        return self._done(message)


def _bytes(value: Array | SparseRows) -> bytes:
    return (value.values if isinstance(value, SparseRows) else value).tobytes()


def _weight(datum: Datum, shape: tuple[int, ...]) -> float:
    weights = datum.inputs.get("weights")
    if weights is None:
        return float(np.prod(shape))
    values: Any = weights.values if isinstance(weights, SparseRows) else weights
    return float(values.sum())


def _digest(*values: object) -> str:
    found = hashlib.blake2b(digest_size=16)
    for value in values:
        found.update(value if isinstance(value, bytes) else repr(value).encode())
    return found.hexdigest()


def _write(folder: Path, model: NoopModel) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / FILE).write_text(json.dumps(asdict(model)), encoding="utf-8")


def _read(folder: Path) -> NoopModel:
    if not (folder / FILE).is_file():
        raise Refused(f"no checkpoint at {folder}")
    fields = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return NoopModel(**fields | {"parts": tuple(fields["parts"])})


def _write_peft(folder: Path, model: NoopModel, base_name: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": model.rank, "base_model_name_or_path": base_name or None}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    tensor = np.full((model.rank, 1), model.logprob, np.float32)
    write_safetensors(folder / "adapter_model.safetensors", {"base_model.model.x.lora_A.weight": tensor})
    return sum(path.stat().st_size for path in folder.iterdir())
