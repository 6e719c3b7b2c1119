"""`AdminClient`: the audit log, usage and storage of an organization."""

from __future__ import annotations

from datetime import date, datetime
from typing import Final, Literal

from ..errors import InvalidArgumentError
from ..types.admin import (
    AuditLogResponse,
    BillingUsageResponse,
    CurrentCheckpointStorageUsageResponse,
    GetBillingUsageRequest,
    GetCurrentCheckpointStorageUsageRequest,
)
from ..types.rules import shown
from ..wire.bodies import AuditQuery
from .future import Future
from .rest_calls import RestCalls, awaited

__all__ = ["AdminClient", "AuditEvents"]

AuditEvents = Literal["all", "checkpoints", "projects", "teams", "organizations"]


class AdminClient(RestCalls):
    """What administrators of an organization may ask; it needs no session.

    Made like a `RestClient`, with which it shares connections.
    """

    def get_audit_log(
        self, event_type: AuditEvents = "all", day: date | None = None
    ) -> Future[AuditLogResponse]:
        """What was done in the organization on one day (UTC), by default today."""
        return self._ask(
            "audit_log", "get_audit_log", query=AuditQuery(event_type=event_type, day=_written(day))
        )

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> Future[BillingUsageResponse]:
        """Usage by the hour; both ends are whole UTC hours, at most 14 days apart."""
        window = GetBillingUsageRequest.model_validate(
            {"starting_on": starting_on, "ending_before": ending_before}
        )
        return self._ask("billing_usage", "get_billing_usage", query=window)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> Future[CurrentCheckpointStorageUsageResponse]:
        """What checkpoints take up now, in the organization or in one project."""
        return self._ask(
            "checkpoint_storage_usage",
            "get_current_checkpoint_storage_usage",
            query=GetCurrentCheckpointStorageUsageRequest(project_id=project_id),
        )

    get_audit_log_async: Final = awaited(get_audit_log)
    get_billing_usage_async: Final = awaited(get_billing_usage)
    get_current_checkpoint_storage_usage_async: Final = awaited(get_current_checkpoint_storage_usage)


def _written(day: date | None) -> str | None:
    if day is None:
        return None
    if isinstance(day, datetime):
        day = day.date()
    if not isinstance(day, date):
        raise InvalidArgumentError(f"day: expected a date, got {shown(day)}")
    return day.isoformat()
