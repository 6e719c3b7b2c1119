"""The audit log, usage and storage."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from .compounds import OneOf
from .record import Record
from .variant import UnknownVariant

__all__ = [
    "AuditLogEntry",
    "AuditLogResponse",
    "BillingEventInfo",
    "BillingUsageEvent",
    "BillingUsageResponse",
    "BillingUsageSession",
    "CheckpointBillingEvent",
    "CurrentCheckpointStorageUsageItem",
    "CurrentCheckpointStorageUsageResponse",
    "GetBillingUsageRequest",
    "GetCurrentCheckpointStorageUsageRequest",
    "SamplingPrefillBillingEvent",
    "SamplingSampleBillingEvent",
    "StorageBillingEvent",
    "TrainingBillingEvent",
]


class AuditLogEntry(Record):
    """Something that was done."""

    timestamp: datetime
    event: str
    event_details: dict[str, object] = {}
    model_id: str | None = None
    tinker_path: str | None = None
    purpose: str | None = None


class AuditLogResponse(Record):
    """The entries of an audit log."""

    entries: list[AuditLogEntry]


class GetBillingUsageRequest(Record):
    """Asks for usage in a window of whole UTC hours, at most 14 days long."""

    starting_on: datetime
    ending_before: datetime


class TrainingBillingEvent(Record):
    """Tokens trained on."""

    type: Literal["training"] = "training"
    token_count: int
    __tag__ = "training"


class SamplingPrefillBillingEvent(Record):
    """Prompt tokens read."""

    type: Literal["sampling_prefill"] = "sampling_prefill"
    cached: bool
    token_count: int
    __tag__ = "sampling_prefill"


class SamplingSampleBillingEvent(Record):
    """Tokens sampled."""

    type: Literal["sampling_sample"] = "sampling_sample"
    token_count: int
    __tag__ = "sampling_sample"


class CheckpointBillingEvent(Record):
    """Checkpoints saved."""

    type: Literal["checkpoint"] = "checkpoint"
    count: int
    __tag__ = "checkpoint"


class StorageBillingEvent(Record):
    """Storage used."""

    type: Literal["storage"] = "storage"
    gigabyte_hours: float
    __tag__ = "storage"


BillingEventInfo: TypeAlias = Annotated[
    TrainingBillingEvent
    | SamplingPrefillBillingEvent
    | SamplingSampleBillingEvent
    | CheckpointBillingEvent
    | StorageBillingEvent,
    OneOf("type", unknown=UnknownVariant),
]


class BillingUsageEvent(Record):
    """Usage of one kind in one hour."""

    bucket_start: datetime
    bucket_end: datetime
    base_model: str | None = None
    user_id: str | None = None
    user_name: str | None = None
    session_id: str | None = None
    project_id: str | None = None
    estimated_cost_usd: float | None = None
    effective_rate_usd_per_million_tokens: float | None = None
    effective_rate_usd_per_gigabyte_month: float | None = None
    event_info: BillingEventInfo


class BillingUsageSession(Record):
    """What is known of a session that used something."""

    user_metadata: dict[str, str] | None = None


class BillingUsageResponse(Record):
    """Usage events and the sessions they belong to."""

    data: list[BillingUsageEvent]
    sessions: dict[str, BillingUsageSession] = {}
    cost_data_through: datetime | None = None


class GetCurrentCheckpointStorageUsageRequest(Record):
    """Asks how much checkpoints take up now."""

    project_id: str | None = None


class CurrentCheckpointStorageUsageItem(Record):
    """What one owner's checkpoints take up."""

    project_id: str | None = None
    org_user_urn: str | None = None
    user_email: str | None = None
    user_name: str | None = None
    checkpoint_count: int
    size_bytes: int
    size_gigabytes: float
    estimated_monthly_cost_usd: float | None = None


class CurrentCheckpointStorageUsageResponse(Record):
    """What checkpoints take up now."""

    effective_rate_usd_per_gigabyte_month: float | None = None
    data: list[CurrentCheckpointStorageUsageItem]
