"""Optimizer families and the settings of one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from .compounds import OneOf, Own
from .identifiers import ModelID
from .record import OpenRecord, Record
from .rules import Bounds, Mismatch, Schema

__all__ = [
    "AdamOptimizerConfig",
    "AdamParams",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "OptimParams",
    "OptimParamsBase",
    "OptimStepRequest",
    "OptimStepResponse",
    "OptimizerConfig",
    "OptimizerConfigBase",
]


class OptimizerConfigBase(OpenRecord):
    """An optimizer family chosen when a model is created, named by `type`."""

    type: str


class AdamOptimizerConfig(OptimizerConfigBase):
    """Chooses AdamW."""

    type: Literal["adamw"] = "adamw"
    __tag__ = "adamw"
    __open__ = False


class DimuonOptimizerConfig(OptimizerConfigBase):
    """Chooses Dimuon."""

    type: Literal["dimuon"] = "dimuon"
    version: Literal[1] = 1
    __tag__ = "dimuon"
    __open__ = False


Finite: TypeAlias = Annotated[float, Bounds(finite=True)]


class AdamParams(Record):
    """The settings of one AdamW step; weight decay is decoupled, a clip norm of 0 clips nothing."""

    learning_rate: Finite = 0.0001
    beta1: Finite = 0.9
    beta2: Finite = 0.95
    eps: Finite = 1e-12
    weight_decay: Finite = 0.0
    grad_clip_norm: Finite = 0.0
    __tag__ = "adamw"


class OptimParamsBase(OpenRecord):
    """The settings of one step of an optimizer other than Adam, named by `type`."""

    type: str


class DimuonParams(OptimParamsBase):
    """The settings of one Dimuon step."""

    type: Literal["dimuon"] = "dimuon"
    learning_rate: Annotated[float, Bounds(ge=0, finite=True)]
    grad_clip_norm: Finite = 0.0
    beta1: Annotated[float, Bounds(ge=0, lt=1, finite=True)] = 0.9
    __tag__ = "dimuon"
    __open__ = False


OptimizerConfig: TypeAlias = Annotated[
    AdamOptimizerConfig | DimuonOptimizerConfig | OptimizerConfigBase,
    OneOf("type", infer=lambda value: "adamw", unknown=OptimizerConfigBase),
]

# Adam's settings have no `type`; any other family's have.
OptimParams: TypeAlias = Annotated[
    AdamParams | DimuonParams | OptimParamsBase,
    OneOf("type", infer=lambda value: "adamw", unknown=OptimParamsBase),
]


class OptimStepRequest(Record):
    """One optimizer step of one model."""

    optim_params: OptimParams
    model_id: ModelID
    seq_id: int | None = None
    type: Literal["optim_step"] = "optim_step"

    @classmethod
    def _renamed(cls, given: dict[str, Any]) -> dict[str, Any]:
        for alias in ("adam_params", "optimizer_params"):
            if given.get(alias) is not None and "optim_params" not in given:
                given = {("optim_params" if k == alias else k): v for k, v in given.items()}
        return given

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> OptimStepRequest:
        try:
            return super().__take__(value, lenient)
        except Mismatch as problem:
            if not lenient or not problem.path.startswith("optim_params"):
                raise
            # Whoever sent it knows the field by the name it has on the wire.
            other = value.get("adam_params") is None and value.get("optimizer_params") is not None
            name = "optimizer_params" if other else "adam_params"
            path = name + problem.path.removeprefix("optim_params")
            raise Mismatch(problem.message, path) from None

    def _items(self) -> Iterator[tuple[str, Any]]:
        for name, value in super()._items():
            if name == "optim_params":
                name = "adam_params" if isinstance(value, AdamParams) else "optimizer_params"
            yield name, value

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        schema = super().__schema__(definitions)
        schema["properties"].pop("optim_params")
        schema["properties"] |= {
            "adam_params": Own(AdamParams).schema(definitions),
            "optimizer_params": {
                "anyOf": [Own(kind).schema(definitions) for kind in (DimuonParams, OptimParamsBase)]
            },
        }
        either = [{"required": ["adam_params"]}, {"required": ["optimizer_params"]}]
        return {**schema, "required": ["model_id"], "anyOf": either}

    def model_copy(self, *, update: Any = None, deep: bool = False) -> OptimStepRequest:
        """A copy, with some fields replaced."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return OptimStepRequest(**{**fields, **(update or {})})


class OptimStepResponse(Record):
    """What an optimizer step reports, if anything."""

    metrics: dict[str, float] | None = None
