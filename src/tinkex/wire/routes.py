"""The one table of routes: what each is called, what goes in, what comes out.

The client builds requests from it, the server registers handlers from it, the contract document is
made from it.  `kind` is "sync" (the response is the answer), "future" (the response is a ticket whose
result is polled for), "poll", or "stream" (the response is a stream of server-sent events).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

from .. import types
from ..errors import InvalidArgumentError
from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.sample_response import SampleResponse
from . import bodies

__all__ = ["PREFIX", "ROUTES", "Lane", "Route", "route"]

PREFIX = "/api/v1"

Kind = Literal["sync", "future", "poll", "stream"]
Lane = Literal["config", "auth", "session", "train", "sample", "poll", "poll_many", "rest", "telemetry"]
Method = Literal["GET", "POST", "PUT", "DELETE"]


class TelemetryBody(types.TelemetryBatch):
    """A report as a server reads it: SDKs before 0.24 have no process id."""

    process_uuid: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation of the service."""

    name: str
    method: Method
    path: str  # below /api/v1; `{x}` is one segment, `{x:path}` may hold slashes
    kind: Kind
    lane: Lane
    request: Any = None  # a record; PassRequest travels as protobuf
    response: Any = None
    result: Any = None  # what a ticket's result is
    request_type: str | None = None  # the value of X-Tinker-Request-Type while polling
    query: Any = None
    since: str = "0.3.0"  # the first and last SDK that calls it
    until: str | None = None
    reads: Any = None  # the record a server reads the body as, where it must be more tolerant
    summary: str = ""
    events: Mapping[str, Any] | None = None  # the events of a stream, by name; the last is the result

    @property
    def full_path(self) -> str:
        """The path with the API prefix."""
        return PREFIX + self.path

    @property
    def binary_result(self) -> bool:
        """Whether results travel as protobuf to clients that accept it."""
        return self.result in (SampleResponse, ForwardBackwardOutput)

    @property
    def server_request(self) -> Any:
        """The record a server reads the body as."""
        return self.reads or self.request

    def url_path(self, **values: str) -> str:
        """The path with its parameters filled in; colons stay as they are."""
        path = self.full_path
        for name, value in values.items():
            unfit = not isinstance(value, str) or not value or value.startswith("/")
            if unfit or {".", ".."} & set(value.split("/")):
                raise InvalidArgumentError(f"{name}: {value!r} cannot stand in a path")
            if f"{{{name}:path}}" in path:
                path = path.replace(f"{{{name}:path}}", quote(value, safe=":/=@+,~"))
            else:
                path = path.replace(f"{{{name}}}", quote(value, safe=":=@+,~"))
        if "{" in path:
            raise InvalidArgumentError(f"{self.name}: {path} still needs a value")
        return path


_checkpoint = "/training_runs/{training_run_id}/checkpoints/{checkpoint_id:path}"


def _routes() -> Iterator[Route]:
    ticket = types.UntypedAPIFuture
    yield Route(
        "health", "GET", "/healthz", "sync", "rest",
        response=types.HealthResponse, summary="The server is up.",
    )
    yield Route(
        "get_server_capabilities", "GET", "/get_server_capabilities", "sync", "rest",
        response=types.GetServerCapabilitiesResponse, summary="The base models on offer.",
    )
    yield Route(
        "client_config", "POST", "/client/config", "sync", "config",
        request=types.ClientConfigRequest, response=types.ClientConfigResponse, since="0.18.0",
        summary="How a client should behave.",
    )
    yield Route(
        "client_dynamic_config", "POST", "/client/dynamic_config", "sync", "config",
        request=types.ClientConfigRequest, response=types.ClientDynamicConfigResponse,
        since="0.25.0", summary="Settings that may change while a client lives.",
    )
    yield Route(
        "auth_token", "POST", "/auth/token", "sync", "auth",
        request=bodies.Nothing, response=types.AuthTokenResponse, since="0.18.0",
        summary="Trade a credential for a short-lived token.",
    )
    yield Route(
        "get_api_key", "GET", "/auth/apikey/me", "sync", "auth",
        response=bodies.ApiKeyResponse, since="0.26.0", summary="The key in use.",
    )
    yield Route(
        "delete_api_key", "DELETE", "/auth/apikey/me", "sync", "auth",
        response=bodies.Nothing, since="0.26.0", summary="Revoke the key in use.",
    )
    yield Route(
        "create_session", "POST", "/create_session", "sync", "session",
        request=types.CreateSessionRequest, response=types.CreateSessionResponse,
        summary="Open a session.",
    )
    yield Route(
        "session_heartbeat", "POST", "/session_heartbeat", "sync", "session",
        request=types.SessionHeartbeatRequest, response=types.SessionHeartbeatResponse,
        summary="Keep a session alive.",
    )
    yield Route(
        "finish_session", "POST", "/sessions/{session_id}/finish", "sync", "session",
        request=bodies.FinishSessionRequest, response=bodies.Nothing, since="0.27.0",
        summary="End a session.",
    )
    yield Route(
        "create_model", "POST", "/create_model", "future", "train",
        request=types.CreateModelRequest, response=ticket, result=types.CreateModelResponse,
        request_type="CreateModel", summary="Create a model to train.",
    )
    yield Route(
        "get_info", "POST", "/get_info", "sync", "rest",
        request=types.GetInfoRequest, response=types.GetInfoResponse, summary="What a model is.",
    )
    yield Route(
        "unload_model", "POST", "/unload_model", "future", "train",
        request=types.UnloadModelRequest, response=ticket, result=types.UnloadModelResponse,
        request_type="UnloadModel", until="0.25.0", summary="Free a model.",
    )
    yield Route(
        "forward", "POST", "/forward", "future", "train",
        request=bodies.ForwardBody, response=ticket, result=ForwardBackwardOutput,
        request_type="Forward", until="0.24.1", summary="A forward pass (JSON).",
    )
    yield Route(
        "forward_backward", "POST", "/forward_backward", "future", "train",
        request=bodies.ForwardBackwardBody, response=ticket, result=ForwardBackwardOutput,
        request_type="ForwardBackward",
        summary="A forward and backward pass (protobuf, or JSON from SDK 0.24 and older).",
    )
    yield Route(
        "optim_step", "POST", "/optim_step", "future", "train",
        request=types.OptimStepRequest, response=ticket, result=types.OptimStepResponse,
        request_type="OptimStep", summary="An optimizer step.",
    )
    yield Route(
        "save_weights", "POST", "/save_weights", "future", "train",
        request=types.SaveWeightsRequest, response=ticket, result=types.SaveWeightsResponse,
        request_type="SaveWeights", summary="Save weights and optimizer state.",
    )
    yield Route(
        "save_weights_for_sampler", "POST", "/save_weights_for_sampler", "future", "train",
        request=types.SaveWeightsForSamplerRequest, response=ticket,
        result=types.SaveWeightsForSamplerResponseInternal, request_type="SaveWeightsForSampler",
        summary="Save weights to sample from, named or ephemeral.",
    )
    yield Route(
        "save_weights_external", "POST", "/save_weights_external", "future", "train",
        request=types.SaveWeightsExternalRequest, response=ticket,
        result=types.SaveWeightsExternalResponseInternal, request_type="SaveWeightsExternal",
        since="0.28.0", summary="Save weights in a format other tools read.",
    )
    yield Route(
        "load_weights", "POST", "/load_weights", "future", "train",
        request=types.LoadWeightsRequest, reads=bodies.LoadWeightsBody, response=ticket,
        result=types.LoadWeightsResponse, request_type="LoadWeights",
        summary="Load weights into a model, or create one from them.",
    )
    yield Route(
        "weights_info", "POST", "/weights_info", "sync", "rest",
        request=bodies.WeightsInfoRequest, response=types.WeightsInfoResponse, since="0.6.0",
        summary="What a checkpoint was trained from.",
    )
    yield Route(
        "copy_weights", "POST", "/copy_weights", "sync", "rest",
        request=types.CopyWeightsRequest, response=types.CopyWeightsResponse, since="0.26.2",
        summary="Copy a checkpoint.",
    )
    yield Route(
        "create_custom_loss", "POST", "/create_custom_loss", "future", "train",
        request=types.CreateCustomLossRequest, response=ticket,
        result=types.CreateCustomLossResponse, request_type="CreateCustomLoss", since="0.36.0",
        summary="Register a traced loss.",
    )
    yield Route(
        "create_sampling_session", "POST", "/create_sampling_session", "sync", "session",
        request=types.CreateSamplingSessionRequest, response=types.CreateSamplingSessionResponse,
        summary="Open a sampling session.",
    )
    yield Route(
        "join_sampling_session", "POST", "/join_sampling_session", "sync", "session",
        request=types.JoinSamplingSessionRequest, response=types.JoinSamplingSessionResponse,
        since="0.32.0", summary="Join a sampling session from another process.",
    )
    yield Route(
        "asample", "POST", "/asample", "future", "sample",
        request=types.SampleRequest, response=ticket, result=SampleResponse,
        request_type="Sample", summary="Sample.",
    )
    yield Route(
        "sample_stream", "POST", "/asample_stream", "stream", "sample",
        request=types.SampleRequest, since="tinkex",
        summary="Sample, and get the tokens as they come; the same seq_id on /asample is the same work.",
        events={"tokens": bodies.TokensEvent, "done": SampleResponse, "error": bodies.ErrorEvent},
    )
    yield Route(
        "retrieve_future", "POST", "/retrieve_future", "poll", "poll",
        request=types.FutureRetrieveRequest, summary="Wait for one result.",
    )
    yield Route(
        "retrieve_futures", "POST", "/retrieve_futures", "poll", "poll_many",
        request=types.FuturesRetrieveRequest, response=types.FuturesRetrieveResponse,
        since="0.26.2", summary="Wait for any result of a sampling session.",
    )
    yield Route(
        "cancel_future", "POST", "/cancel_future", "sync", "sample",
        request=bodies.CancelFutureRequest, response=bodies.Nothing, since="0.26.0",
        summary="A result is no longer wanted.",
    )
    yield Route(
        "telemetry", "POST", "/telemetry", "sync", "telemetry",
        request=types.TelemetrySendRequest, reads=TelemetryBody, response=types.TelemetryResponse,
        summary="Report events.",
    )
    yield Route(
        "list_training_runs", "GET", "/training_runs", "sync", "rest",
        query=bodies.ListRunsQuery, response=types.TrainingRunsResponse,
        summary="A page of training runs.",
    )
    yield Route(
        "get_training_run", "GET", "/training_runs/{training_run_id}", "sync", "rest",
        query=bodies.ScopeQuery, response=types.TrainingRun, summary="One training run.",
    )
    yield Route(
        "list_checkpoints", "GET", "/training_runs/{training_run_id}/checkpoints", "sync", "rest",
        response=types.CheckpointsListResponse, since="0.4.0", summary="A run's checkpoints.",
    )
    yield Route(
        "list_model_checkpoints", "GET", "/models/{training_run_id}/checkpoints", "sync", "rest",
        response=types.CheckpointsListResponse, until="0.3.0",
        summary="A run's checkpoints, under the name SDK 0.3.0 uses.",
    )
    yield Route(
        "list_tokenizer_files", "GET", "/models/{model_name:path}/tokenizer", "sync", "rest",
        response=bodies.TokenizerFilesResponse, since="tinkex",
        summary="The files a base model's tokenizer is loaded from.",
    )
    yield Route(
        "get_tokenizer_file", "GET", "/models/{model_name:path}/tokenizer/{file}", "sync", "rest",
        since="tinkex", summary="One file of a base model's tokenizer, as it is.",
    )
    yield Route(
        "list_user_checkpoints", "GET", "/checkpoints", "sync", "rest",
        query=bodies.ListCheckpointsQuery, response=types.CheckpointsListResponse, since="0.4.0",
        summary="A page of all checkpoints.",
    )
    yield Route(
        "delete_checkpoint", "DELETE", _checkpoint, "sync", "rest",
        response=bodies.Nothing, summary="Delete a checkpoint.",
    )
    yield Route(
        "publish_checkpoint", "POST", f"{_checkpoint}/publish", "sync", "rest",
        response=bodies.Nothing, since="0.4.0", summary="Let everyone load a checkpoint.",
    )
    yield Route(
        "unpublish_checkpoint", "DELETE", f"{_checkpoint}/publish", "sync", "rest",
        response=bodies.Nothing, since="0.4.0", summary="Make a checkpoint private again.",
    )
    yield Route(
        "set_checkpoint_ttl", "PUT", f"{_checkpoint}/ttl", "sync", "rest",
        request=bodies.SetTtlRequest, response=bodies.Nothing, since="0.13.0",
        summary="Say when a checkpoint expires.",
    )
    yield Route(
        "checkpoint_archive", "GET", f"{_checkpoint}/archive", "sync", "rest",
        response=bodies.ArchiveUrlResponse, until="0.35.0",
        summary="Where a checkpoint's archive is (also as a redirect).",
    )
    yield Route(
        "external_weights_urls", "GET", f"{_checkpoint}/external_weights_urls", "sync", "rest",
        response=types.ExternalWeightsUrlsResponse, since="0.28.0",
        summary="Download addresses of an exported checkpoint.",
    )
    yield Route(
        "list_sessions", "GET", "/sessions", "sync", "rest",
        query=bodies.ListSessionsQuery, response=types.ListSessionsResponse, since="0.5.0",
        summary="A page of sessions.",
    )
    yield Route(
        "search_sessions", "POST", "/sessions/search", "sync", "rest",
        request=types.SessionSearchRequest, response=types.SessionSearchResponse, since="0.36.0",
        summary="Find sessions.",
    )
    yield Route(
        "get_session", "GET", "/sessions/{session_id}", "sync", "rest",
        query=bodies.ScopeQuery, response=types.GetSessionResponse, since="0.5.0",
        summary="One session.",
    )
    yield Route(
        "assign_session_project", "PUT", "/sessions/{session_id}/project", "sync", "rest",
        request=bodies.AssignProjectRequest, response=bodies.Nothing, since="0.22.0",
        summary="Put a session into a project.",
    )
    yield Route(
        "session_trace_export", "GET", "/sessions/{session_id}/trace_export", "sync", "rest",
        response=bodies.TraceExportResponse, since="0.24.0", summary="Export a session's trace.",
    )
    yield Route(
        "get_sampler", "GET", "/samplers/{sampler_id}", "sync", "rest",
        response=types.GetSamplerResponse, since="0.6.0",
        summary="What a sampling session samples from.",
    )
    yield Route(
        "audit_log", "GET", "/audit", "sync", "rest",
        query=bodies.AuditQuery, response=types.AuditLogResponse, since="0.20.0",
        summary="What was done.",
    )
    yield Route(
        "billing_usage", "GET", "/billing/usage/events", "sync", "rest",
        query=types.GetBillingUsageRequest, response=types.BillingUsageResponse, since="0.23.0",
        summary="What was used.",
    )
    yield Route(
        "checkpoint_storage_usage", "GET", "/billing/usage/checkpoints/current", "sync", "rest",
        query=types.GetCurrentCheckpointStorageUsageRequest,
        response=types.CurrentCheckpointStorageUsageResponse, since="0.32.0",
        summary="What checkpoints take up.",
    )


ROUTES: Mapping[str, Route] = MappingProxyType({each.name: each for each in _routes()})


def route(name: str) -> Route:
    """The route of that name."""
    return ROUTES[name]
