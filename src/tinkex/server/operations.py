"""Operations on models: what each tells the engine, and what its answer means for the client and the store.

An operation is made from a request when it arrives, and from its stored body after a restart: the same
function does both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from ..engine.messages import (
    CreateAdapter,
    Done,
    Export,
    LoadState,
    OptimStep,
    PartResult,
    Request,
    SaveSampler,
    SaveState,
    TrainPart,
    Unload,
)
from ..types import (
    CreateModelResponse,
    LoadWeightsResponse,
    LoraConfig,
    OptimStepResponse,
    SaveWeightsExternalResponseInternal,
    SaveWeightsForSamplerResponseInternal,
    SaveWeightsResponse,
    UnloadModelResponse,
)
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.tensor_data import TensorData
from ..wire.jsonbody import encode
from ..wire.passes import encode_output
from .records import AuditRow, CheckpointRow, ModelRow, SamplerRow
from .store import Change, Delete, Note, Put
from .tickets import Ticket
from .world import LiveModel

OUTPUT_TYPE = "TorchLossReturn"


@dataclass(slots=True)
class Outcome:
    """What came of an operation: its result and what is to be stored with it."""

    result: bytes = b""
    form: str = "json"
    error: str = ""
    category: str = ""
    changes: list[Change] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether it failed."""
        return bool(self.category)


class Work(ABC):
    """What one kind of operation does."""

    changes_weights = False
    """Whether a replay must do it again."""
    needs_snapshot = False
    """Whether a snapshot is due as soon as it has ended."""

    @property
    def saves(self) -> str | None:
        """The path it saves to, if it does."""
        return None

    @abstractmethod
    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """What the engine is told."""

    @abstractmethod
    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """What the engine's answer means."""


@dataclass(slots=True, eq=False)
class Operation:
    """One operation on a model, from its acceptance to its end."""

    id: str
    model: LiveModel
    seq: int
    kind: str
    owner: str
    work: Work | PassWork
    ticket: Ticket
    size: int = 0
    """Bytes of its body."""
    deaths: int = 0
    """How often the engine died while it had this operation."""
    ending: bool = False
    """Whether its end is being written down."""
    entered: float = 0.0
    """When it took its place in line, on the monotonic clock."""
    begun: float | None = None
    """When the engine was told of it."""
    asked_by: str = ""
    """The request it came with, for the log; empty after a restart."""


@dataclass(slots=True)
class PassWork:
    """A forward pass, with or without a backward one; passes of several models are joined."""

    part: TrainPart
    needs_snapshot = False
    saves = None

    @property
    def changes_weights(self) -> bool:
        """Whether it leaves a gradient behind."""
        return not self.part.forward_only

    @property
    def tokens(self) -> int:
        """Tokens it reads."""
        return sum(len(datum.tokens) for datum in self.part.data)

    def done(self, answer: PartResult) -> Outcome:
        """The pass's result as it is kept."""
        return Outcome(encode_output(pass_output(answer)), "pass")


def pass_output(answer: PartResult) -> ForwardBackwardOutput:
    """The engine's arrays as the public result."""
    outputs = [
        {
            name: TensorData.wrap(
                array, "int64" if array.dtype.kind == "i" else "float32", list(array.shape)
            )
            for name, array in each.items()
        }
        for each in answer.outputs
    ]
    return ForwardBackwardOutput(OUTPUT_TYPE, outputs, answer.metrics)


@dataclass(slots=True)
class CreateWork(Work):
    """A fresh adapter."""

    lora: LoraConfig
    """Its first shape: loading weights may have given the model another since."""
    changes_weights = True

    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """Make it with the seed that was chosen when it was accepted."""
        lora = self.lora
        return CreateAdapter(
            epoch, request_id, model.id, lora.rank, model.seed, lora.train_attn, lora.train_mlp,
            lora.train_unembed, str(model.optimizer.get("type", "adamw")),
        )  # fmt: skip

    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """The model is there."""
        return Outcome(encode(CreateModelResponse(model_id=model.id)))


@dataclass(slots=True)
class StepWork(Work):
    """An optimizer step."""

    params: dict[str, float]
    changes_weights = True

    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """Use up the gradient."""
        return OptimStep(epoch, request_id, model.id, {**self.params})

    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """The step's metrics."""
        return Outcome(encode(OptimStepResponse(metrics=dict(answer.metrics))))


@dataclass(slots=True)
class LoadWork(Work):
    """Saved weights in place of a model's own, or a model made from them."""

    path: str
    """The `tinker://` path."""
    source: CheckpointRow
    folder: str
    with_optimizer: bool
    changes_weights = True
    needs_snapshot = True

    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """Read them from their folder."""
        return LoadState(epoch, request_id, model.id, self.folder, self.with_optimizer)

    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """The model is what the checkpoint was."""
        source = self.source
        model.rank, model.train_attn = source.rank, source.train_attn
        model.train_mlp, model.train_unembed = source.train_mlp, source.train_unembed
        made = LoadWeightsResponse(path=self.path, model_id=model.id, type="load_weights")
        return Outcome(encode(made), changes=[Put(model)])


@dataclass(slots=True)
class SaveWork(Work):
    """A model's state, or weights others can read, under a name."""

    checkpoint: CheckpointRow
    folder: str

    @property
    def saves(self) -> str | None:
        """The checkpoint's path."""
        return self.checkpoint.path

    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """Write to the folder."""
        if self.checkpoint.kind == "external":
            return Export(epoch, request_id, model.id, self.folder, self.checkpoint.base_model)
        return SaveState(epoch, request_id, model.id, self.folder)

    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """It is saved: from now on the path is known."""
        row = finished_checkpoint(self.checkpoint, model, now, answer)
        if row.kind == "external":
            made: Any = SaveWeightsExternalResponseInternal(
                path=row.path, size_bytes=row.size, type="save_weights_external"
            )
        else:
            made = SaveWeightsResponse(path=row.path, type="save_weights")
        return Outcome(encode(made), changes=[Put(row), saved_note(row, now)])


@dataclass(slots=True)
class SaveSamplerWork(Work):
    """A model's weights frozen for sampling: under a name, or for one sampling session."""

    checkpoint: CheckpointRow | None = None
    folder: str | None = None
    sampler: SamplerRow | None = None
    version: str = ""
    """What the engine called the weights, once it has frozen them."""
    epoch: int = -1
    """Which engine that was."""

    @property
    def saves(self) -> str | None:
        """The checkpoint's path, if it has a name."""
        return None if self.checkpoint is None else self.checkpoint.path

    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """Freeze them; with a folder write them too."""
        return SaveSampler(epoch, request_id, model.id, self.folder)

    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """The name, or the sampling session, of what was frozen."""
        version = self.version = str(answer.facts["version"])
        self.epoch = answer.epoch
        if self.checkpoint is not None:
            row = finished_checkpoint(self.checkpoint, model, now, answer)
            row.version = version
            made = SaveWeightsForSamplerResponseInternal(path=row.path, type="save_weights_for_sampler")
            return Outcome(encode(made), changes=[Put(row), saved_note(row, now)])
        assert self.sampler is not None
        self.sampler.version = version
        made = SaveWeightsForSamplerResponseInternal(
            sampling_session_id=self.sampler.id, type="save_weights_for_sampler"
        )
        return Outcome(encode(made), changes=[Put(self.sampler)])


@dataclass(slots=True)
class UnloadWork(Work):
    """A model is no longer needed."""

    changes_weights = True

    def message(self, epoch: int, request_id: str, model: ModelRow) -> Request:
        """Let go of it."""
        return Unload(epoch, request_id, model.id)

    def done(self, answer: Done, model: ModelRow, now: float) -> Outcome:
        """It is gone; its checkpoints stay."""
        model.state, model.note = "unloaded", "unloaded by its client"
        made = UnloadModelResponse(model_id=model.id, type="unload_model")
        return Outcome(encode(made), changes=[Put(model)])


def finished_checkpoint(row: CheckpointRow, model: ModelRow, now: float, answer: Done) -> CheckpointRow:
    """A checkpoint as it was saved: its expiry counts from now, its shape is the model's at this moment."""
    if row.expires is not None:
        row.expires += now - row.created
    row.created = now
    row.rank, row.optimizer = model.rank, dict(model.optimizer)
    row.train_attn, row.train_mlp, row.train_unembed = (
        model.train_attn,
        model.train_mlp,
        model.train_unembed,
    )
    size = answer.facts.get("bytes")
    if isinstance(size, (int, float)):
        row.size = int(size)
    return row


def saved_note(row: CheckpointRow, now: float) -> Change:
    """The audit line of a new checkpoint."""
    return Note(AuditRow(now, row.owner, "checkpoint.created", row.run_id, row.path))


def forget_checkpoint(row: CheckpointRow, now: float, event: str) -> list[Change]:
    """What is stored when a checkpoint is deleted or has expired."""
    return [Delete(CheckpointRow, row.path), Note(AuditRow(now, row.owner, event, row.run_id, row.path))]
