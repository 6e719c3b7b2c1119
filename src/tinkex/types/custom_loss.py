"""A loss traced on the client, as plain data for the server to rebuild."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from .record import Record

__all__ = [
    "CreateCustomLossRequest",
    "CreateCustomLossResponse",
    "CustomLossGraph",
    "CustomLossInput",
    "CustomLossInputRank",
    "CustomLossNode",
    "CustomLossNodeOp",
]

CustomLossInputRank: TypeAlias = Literal[0, 1, 2]
CustomLossNodeOp: TypeAlias = Literal[
    "placeholder", "get_attr", "call_function", "call_method", "call_module", "output"
]


class CustomLossInput(Record):
    """One input of a custom loss and its rank: a scalar, [T] or [T, K]."""

    name: str
    rank: CustomLossInputRank


class CustomLossNode(Record):
    """One step of a traced loss; arguments that JSON cannot hold are one-key objects."""

    op: CustomLossNodeOp
    name: str
    target: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class CustomLossGraph(Record):
    """The steps of a traced loss, in order."""

    format: Literal[1] = 1
    nodes: list[CustomLossNode]


class CreateCustomLossRequest(Record):
    """Registers a traced loss in a session."""

    session_id: str
    custom_loss_seq_id: int
    name: str
    inputs: list[CustomLossInput]
    graph: CustomLossGraph
    type: Literal["create_custom_loss"] = "create_custom_loss"


class CreateCustomLossResponse(Record):
    """The id of a registered loss."""

    loss_id: str
    type: Literal["create_custom_loss"] = "create_custom_loss"
