"""Rows for tests of the store: everything has a default, and what is named is set."""

from __future__ import annotations

from typing import Any

from tinkex.server.records import (
    AuditRow,
    CheckpointRow,
    LossRow,
    ModelRow,
    OperationRow,
    SamplerRow,
    SessionRow,
    UsageRow,
)


def session(id: str = "s", owner: str = "ann", created: float = 1.0, **more: Any) -> SessionRow:
    return SessionRow(id, owner, created, more.pop("last_seen", created), **more)


def model(id: str = "s:train:0", session_id: str = "s", created: float = 1.0, **more: Any) -> ModelRow:
    values = {"owner": "ann", "base_model": "tiny", "last_request": created, "rank": 8, "seed": 7} | more
    return ModelRow(id, session_id, created=created, **values)


def sampler(id: str = "s:sample:0", session_id: str = "s", created: float = 1.0, **more: Any) -> SamplerRow:
    return SamplerRow(
        id, session_id, more.pop("owner", "ann"), more.pop("base_model", "tiny"), created, **more
    )


def checkpoint(path: str = "tinker://a/weights/b", created: float = 1.0, **more: Any) -> CheckpointRow:
    values: dict[str, Any] = {
        "run_id": "s:train:0",
        "kind": "training",
        "name": "b",
        "owner": "ann",
        "base_model": "tiny",
        "rank": 8,
        "size": 100,
        "folder": "checkpoints/a/b",
    }
    return CheckpointRow(path, created=created, **(values | more))


def operation(
    seq: int = 1, model_id: str = "s:train:0", body: bytes = b"asked", **more: Any
) -> OperationRow:
    values: dict[str, Any] = {"kind": "forward_backward", "owner": "ann", "arrived": 2.0, "body": body}
    return OperationRow(f"{model_id}:{seq}", model_id, seq, **(values | more))


def loss(id: str = "l", session_id: str = "s", created: float = 1.0, **more: Any) -> LossRow:
    return LossRow(
        id, session_id, more.pop("owner", "ann"), created, more.pop("name", "mine"), "{}", **more
    )


def used(hour: int, count: int, **more: Any) -> UsageRow:
    values: dict[str, Any] = {
        "owner": "ann",
        "kind": "training",
        "session_id": "s",
        "base_model": "tiny",
        "project_id": "",
    }
    return UsageRow(hour, count=count, **(values | more))


def noted(time: float, event: str, **more: Any) -> AuditRow:
    return AuditRow(time, more.pop("owner", "ann"), event, **more)
