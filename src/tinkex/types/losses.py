"""Loss names, and what goes into and comes out of a forward or backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from ..errors import InvalidArgumentError
from .datum import Datum
from .identifiers import ModelID
from .rules import Mismatch, Schema, closest, shown

__all__ = [
    "ForwardBackwardInput",
    "ForwardBackwardRequest",
    "ForwardRequest",
    "LossFnType",
    "check_loss",
]

LossFnType: TypeAlias = Literal[
    "cross_entropy",
    "importance_sampling",
    "ppo",
    "cispo",
    "dro",
    "gspo",
    "stable_reinforce",
    "custom",
]

LOSS_NAMES: tuple[str, ...] = get_args(LossFnType)


def check_loss(name: object, config: Mapping[str, float | str] | None = None) -> None:
    """Refuse a loss name the service does not have, or a config value it cannot carry."""
    if name not in LOSS_NAMES:
        near = closest(name, LOSS_NAMES) if isinstance(name, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise InvalidArgumentError(
            f"loss_fn: {shown(name)} is not a loss; use one of {', '.join(LOSS_NAMES)}{hint}"
        )
    if config is not None and not isinstance(config, Mapping):
        raise InvalidArgumentError(f"loss_fn_config: expected a mapping, got {shown(config)}")
    for key, value in (config or {}).items():
        if not isinstance(key, str):
            raise InvalidArgumentError(f"loss_fn_config: names must be text, got {shown(key)}")
        if not isinstance(value, str) and not _is_number(value):
            raise InvalidArgumentError(
                f"loss_fn_config[{key!r}]: expected a number or text, got {shown(value)}"
            )


def _is_number(value: object) -> bool:
    """Whether a value is one number, of Python's, numpy's or torch's."""
    return hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0


@dataclass(frozen=True, slots=True)
class ForwardBackwardInput:
    """The data of a pass, the loss (one of `LossFnType`) and the loss's settings."""

    data: list[Datum]
    loss_fn: LossFnType
    loss_fn_config: Mapping[str, float | str] | None = field(default=None)

    @classmethod
    def __take__(cls, value: Any, lenient: bool = False) -> ForwardBackwardInput:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise Mismatch(f"expected a mapping, got {shown(value)}")
        for key, kind in (("data", list), ("loss_fn", str)):
            if not isinstance(value.get(key), kind):
                raise Mismatch(f"expected a {kind.__name__}, got {shown(value.get(key))}", key)
        data = []
        for index, datum in enumerate(value["data"]):
            try:
                data.append(Datum.__take__(datum, lenient))
            except Mismatch as problem:
                raise problem.inside(f"data[{index}]") from None
        config = value.get("loss_fn_config")
        if config is not None and not isinstance(config, Mapping):
            raise Mismatch(f"expected a mapping, got {shown(config)}", "loss_fn_config")
        for key, item in (config or {}).items():
            if not isinstance(item, (int, float, str)):
                raise Mismatch(f"expected a number or text, got {shown(item)}", f"loss_fn_config[{key!r}]")
        return cls(data, value["loss_fn"], config)

    @classmethod
    def __schema__(cls, definitions: Schema) -> Schema:
        from .compounds import Own

        return {
            "type": "object",
            "title": "ForwardBackwardInput",
            "properties": {
                "data": {"type": "array", "items": Own(Datum).schema(definitions)},
                "loss_fn": {"enum": [*LOSS_NAMES]},
                "loss_fn_config": {
                    "anyOf": [
                        {
                            "type": "object",
                            "additionalProperties": {"type": ["number", "string"]},
                        },
                        {"type": "null"},
                    ]
                },
            },
            "required": ["data", "loss_fn"],
        }

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """The JSON form."""
        dumped: dict[str, Any] = {
            "data": [datum.model_dump(**options) for datum in self.data],
            "loss_fn": self.loss_fn,
        }
        if self.loss_fn_config is not None:
            dumped["loss_fn_config"] = dict(self.loss_fn_config)
        return dumped


@dataclass(frozen=True, slots=True)
class ForwardBackwardRequest:
    """A forward and backward pass of one model."""

    forward_backward_input: ForwardBackwardInput
    model_id: ModelID
    seq_id: int | None = None


@dataclass(frozen=True, slots=True)
class ForwardRequest:
    """A forward pass of one model."""

    forward_input: ForwardBackwardInput
    model_id: ModelID
    seq_id: int | None = None
