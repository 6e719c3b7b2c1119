"""Requests and responses of the wire that have no public type of their own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..types.identifiers import ModelID
from ..types.losses import ForwardBackwardInput
from ..types.record import Record
from ..types.session import ClientSessionFinishReason
from ..types.weights import LoadWeightsRequest as _LoadWeightsRequest

Scope = Literal["owned", "accessible"]


class Nothing(Record):
    """An empty object, or a body that is ignored."""


class ErrorBody(Record):
    """What went wrong, for a person to read."""

    detail: str


class ForwardBackwardBody(Record):
    """The JSON form of a forward and backward pass (SDK 0.24 and older)."""

    forward_backward_input: ForwardBackwardInput
    model_id: ModelID
    seq_id: int | None = None


class ForwardBody(Record):
    """The JSON form of a forward pass (SDK 0.24 and older)."""

    forward_input: ForwardBackwardInput
    model_id: ModelID
    seq_id: int | None = None


class LoadWeightsBody(_LoadWeightsRequest):
    """Loading weights as a server reads it.

    SDK 0.3 to 0.5 do not say whether they want the optimizer's state: resuming without it would
    silently change a training run, so they get it.
    """

    optimizer: bool = True


class WeightsInfoRequest(Record):
    """Asks about a checkpoint."""

    tinker_path: str


class SetTtlRequest(Record):
    """When a checkpoint expires; null means never, and is sent as such."""

    writes_null: ClassVar[frozenset[str]] = frozenset({"ttl_seconds"})
    ttl_seconds: int | None = None


class FinishSessionRequest(Record):
    """Ends a session; a null detail is sent as such."""

    writes_null: ClassVar[frozenset[str]] = frozenset({"detail"})
    reason: ClientSessionFinishReason
    detail: str | None = None


class AssignProjectRequest(Record):
    """Puts a session into a project."""

    project_id: str


class CancelFutureRequest(Record):
    """The result of a ticket is no longer wanted."""

    request_id: str


class TokensEvent(Record):
    """New tokens of one sequence of a streamed sample; `stop_reason` is set with its last ones."""

    sequence: int = 0
    tokens: list[int] = []
    logprobs: list[float] | None = None
    stop_reason: str | None = None


class ErrorEvent(Record):
    """A streamed sample failed; nothing follows."""

    error: str
    category: str = "unknown"


class CompleteMetadataResponse(Record):
    """A large result is ready; ask again for the result itself."""

    status: Literal["complete_metadata"] = "complete_metadata"
    response_payload_size: int


class TraceExportResponse(Record):
    """How far the export of a session's trace is."""

    status: Literal["pending", "ready", "failed"]
    url: str | None = None
    error: str | None = None


class ArchiveUrlResponse(Record):
    """Where a checkpoint's archive can be fetched (SDK 0.35 and older)."""

    url: str
    expires: str


TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)
"""The files of a model a server may hand out so that its tokenizer can be loaded; none of them is code."""


class TokenizerFile(Record):
    """One file of a model's tokenizer."""

    name: str
    size_bytes: int
    sha256: str


class TokenizerFilesResponse(Record):
    """The files a model's tokenizer is loaded from."""

    model_name: str
    files: list[TokenizerFile]


class OrganizationDetails(Record):
    """The organization of a key's owner."""

    name: str = ""


class UserDetails(Record):
    """The owner of a key."""

    email: str = ""


class ApiKeyDetails(Record):
    """Who a key belongs to."""

    org_details: OrganizationDetails = msgspec.field(default_factory=OrganizationDetails)
    user_details: UserDetails = msgspec.field(default_factory=UserDetails)


class ApiKeyResponse(Record):
    """The key a request was made with."""

    key_id: int
    name: str
    note: str
    details: ApiKeyDetails = msgspec.field(default_factory=ApiKeyDetails)


class ScopeQuery(Record):
    """Whose objects are meant."""

    access_scope: Scope = "owned"


class ListRunsQuery(Record):
    """A page of training runs."""

    limit: Annotated[int, Meta(ge=0)] = 20
    offset: Annotated[int, Meta(ge=0)] = 0
    access_scope: Scope = "owned"
    project_id: str | None = None


class ListSessionsQuery(Record):
    """A page of sessions."""

    limit: Annotated[int, Meta(ge=0)] = 20
    offset: Annotated[int, Meta(ge=0)] = 0
    access_scope: Scope = "owned"


class ListCheckpointsQuery(Record):
    """A page of checkpoints."""

    limit: Annotated[int, Meta(ge=0)] = 100
    offset: Annotated[int, Meta(ge=0)] = 0


class AuditQuery(Record):
    """Which audit entries."""

    event_type: Literal["all", "checkpoints", "projects", "teams", "organizations"] = "all"
    day: str | None = None


def query_of(record: Record) -> dict[str, str]:
    """A query record as the text pairs of an address; what is not set is left out."""
    set_ones = record.model_dump(mode="json", exclude_none=True)
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in set_ones.items()
    }
