"""`RestClient`: training runs, checkpoints and sessions, listed, changed and downloaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, Final

from ..errors import ExperimentalWarning, InvalidArgumentError, TraceExportError, UnsupportedByServerError
from ..net.auth import claims_of
from ..net.credentials import is_jwt
from ..types.admin import AuditLogResponse, BillingUsageResponse, CurrentCheckpointStorageUsageResponse
from ..types.checkpoint import (
    SCHEME,
    Checkpoint,
    CheckpointsListResponse,
    ExternalWeightsUrlsResponse,
    ParsedCheckpointTinkerPath,
)
from ..types.identifiers import ModelID
from ..types.rules import shown
from ..types.sampling import GetSamplerResponse
from ..types.service import WhoamiResponse
from ..types.session import (
    GetSessionResponse,
    ListSessionsResponse,
    SessionSearchRequest,
    SessionSearchResponse,
    SessionSummary,
)
from ..types.training_run import TrainingRun, TrainingRunsResponse
from ..types.weights import CopyWeightsRequest, CopyWeightsResponse, WeightsInfoResponse
from ..wire.bodies import (
    AssignProjectRequest,
    ListCheckpointsQuery,
    ListRunsQuery,
    ListSessionsQuery,
    Scope,
    ScopeQuery,
    SetTtlRequest,
    TraceExportResponse,
    WeightsInfoRequest,
)
from ..wire.headers import WEIGHTS_ACCESS_TOKEN
from ..wire.jsonbody import encode
from ..wire.paths import parse
from ..wire.routes import route
from .admin import AdminClient, AuditEvents
from .downloads import MOST_BYTES, Download, DownloadedCheckpoint, DownloadProgress
from .future import Future
from .pages import ByCursor, ByOffset, Pages, check_page_size
from .rest_calls import RestCalls, awaited, warn_user

__all__ = ["RestClient"]

logger: Final = logging.getLogger(__name__)

_TRACE_SECONDS = 5.0
_ALREADY = frozenset({409})  # "it is public already" does not change by asking again
_GONE = frozenset({404})


class RestClient(RestCalls):
    """Training runs, checkpoints and sessions, without a session of its own.

    Every method returns a future; its `_async` twin returns the value.  Nothing needs closing:
    connections are shared with other clients of the same address and key, and freed with the last.
    """

    # ---- training runs

    def get_training_run(
        self, training_run_id: ModelID, access_scope: Scope = "owned"
    ) -> Future[TrainingRun]:
        """One training run."""
        return self._run("get_training_run", training_run_id, access_scope)

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: Scope = "owned"
    ) -> Future[TrainingRun]:
        """The training run a checkpoint belongs to."""
        run = parse(tinker_path).training_run_id
        return self._run("get_training_run_by_tinker_path", run, access_scope)

    def _run(self, method: str, run: ModelID, scope: Scope) -> Future[TrainingRun]:
        query = ScopeQuery(access_scope=scope)
        return self._ask("get_training_run", method, query=query, training_run_id=run)

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: Scope = "owned",
        project_id: str | None = None,
    ) -> Future[TrainingRunsResponse]:
        """One page of training runs, newest first; `iter_training_runs` reads them all."""
        query = ListRunsQuery(limit=limit, offset=offset, access_scope=access_scope, project_id=project_id)
        return self._ask("list_training_runs", "list_training_runs", query=query)

    def iter_training_runs(
        self, *, page_size: int = 100, access_scope: Scope = "owned", project_id: str | None = None
    ) -> Pages[TrainingRun]:
        """All training runs, newest first, page by page (`for` or `async for`)."""

        async def page(limit: int, offset: int) -> tuple[Sequence[TrainingRun], int | None]:
            answer = await self.list_training_runs(limit, offset, access_scope, project_id)
            return answer.training_runs, answer.cursor.total_count

        check_page_size(page_size)
        return Pages(lambda: ByOffset(page, lambda run: run.training_run_id, page_size))

    # ---- checkpoints

    def list_checkpoints(self, training_run_id: ModelID) -> Future[CheckpointsListResponse]:
        """All checkpoints of a training run."""
        return self._ask("list_checkpoints", "list_checkpoints", training_run_id=training_run_id)

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> Future[CheckpointsListResponse]:
        """One page of all your checkpoints, newest first; `iter_user_checkpoints` reads them all."""
        query = ListCheckpointsQuery(limit=limit, offset=offset)
        return self._ask("list_user_checkpoints", "list_user_checkpoints", query=query)

    def iter_user_checkpoints(self, *, page_size: int = 100) -> Pages[Checkpoint]:
        """All your checkpoints, newest first, page by page (`for` or `async for`)."""

        async def page(limit: int, offset: int) -> tuple[Sequence[Checkpoint], int | None]:
            answer = await self.list_user_checkpoints(limit, offset)
            return answer.checkpoints, answer.cursor.total_count if answer.cursor else None

        check_page_size(page_size)
        return Pages(lambda: ByOffset(page, lambda one: one.tinker_path, page_size))

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> Future[WeightsInfoResponse]:
        """What a checkpoint was trained from, and how."""
        body = WeightsInfoRequest(tinker_path=_some_path(tinker_path))
        return self._ask("weights_info", "get_weights_info_by_tinker_path", body=body)

    def get_external_weights_urls(self, tinker_path: str) -> Future[ExternalWeightsUrlsResponse]:
        """A download address for each file of an exported checkpoint; they expire."""
        parsed = parse(tinker_path)
        if parsed.checkpoint_type != "external":
            raise InvalidArgumentError(
                f"get_external_weights_urls only accepts external weights checkpoints "
                f"({SCHEME}<run>/external_weights/<name>), got {tinker_path!r}"
            )
        return self._checkpoint("external_weights_urls", "get_external_weights_urls", parsed)

    def download_checkpoint(
        self,
        tinker_path: str,
        folder: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        on_progress: Callable[[DownloadProgress], object] | None = None,
        max_bytes: int = MOST_BYTES,
    ) -> Future[DownloadedCheckpoint]:
        """Download a checkpoint's files into a folder, which appears when all are there and whole.

        Until then they grow in `<folder>.part`; the same call again goes on from there.
        """
        download = Download(
            self.holder.connection, parse(tinker_path), folder, overwrite, on_progress, max_bytes
        )
        return self._start(download.run())

    def delete_checkpoint(self, training_run_id: ModelID, checkpoint_id: str) -> Future[None]:
        """Delete a checkpoint of a training run, `weights/<name>` say."""
        return self._ask(
            "delete_checkpoint",
            "delete_checkpoint",
            done=_GONE,
            training_run_id=training_run_id,
            checkpoint_id=checkpoint_id,
        )

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Delete a checkpoint."""
        return self._checkpoint(
            "delete_checkpoint", "delete_checkpoint_from_tinker_path", tinker_path, done=_GONE
        )

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Let everyone load a checkpoint; a `ConflictError` says that everyone may already."""
        return self._checkpoint(
            "publish_checkpoint",
            "publish_checkpoint_from_tinker_path",
            tinker_path,
            final=_ALREADY,
            done=_ALREADY,
        )

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> Future[None]:
        """Make a checkpoint private again; a `ConflictError` says that it is already."""
        return self._checkpoint(
            "unpublish_checkpoint",
            "unpublish_checkpoint_from_tinker_path",
            tinker_path,
            final=_ALREADY,
            done=_ALREADY,
        )

    def set_checkpoint_ttl_from_tinker_path(
        self, tinker_path: str, ttl_seconds: int | None
    ) -> Future[None]:
        """Let a checkpoint expire so many seconds from now; None means never."""
        return self._checkpoint(
            "set_checkpoint_ttl",
            "set_checkpoint_ttl_from_tinker_path",
            tinker_path,
            body=SetTtlRequest(ttl_seconds=ttl_seconds),
        )

    def _checkpoint(
        self, name: str, method: str, path: str | ParsedCheckpointTinkerPath, **more: Any
    ) -> Future[Any]:
        parsed = path if isinstance(path, ParsedCheckpointTinkerPath) else parse(path)
        run, checkpoint = parsed.training_run_id, parsed.checkpoint_id
        return self._ask(name, method, training_run_id=run, checkpoint_id=checkpoint, **more)

    def copy_weights(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> Future[str]:
        """Copy a checkpoint into a project (by default TINKER_PROJECT_ID); gives the copy's path."""
        project = destination_project_id or self.holder.connection.config.project_id
        if project is None:
            raise InvalidArgumentError(
                "copy_weights: pass destination_project_id, or set TINKER_PROJECT_ID"
            )
        body = CopyWeightsRequest(
            source_path=_some_path(path), destination_project_id=project, ttl_seconds=ttl_seconds
        )
        token = {WEIGHTS_ACCESS_TOKEN: weights_access_token} if weights_access_token else None
        return self._start(self._copy(encode(body), token))

    async def _copy(self, body: bytes, token: dict[str, str] | None) -> str:
        answer: CopyWeightsResponse = await self._call(
            route("copy_weights"), "copy_weights", body, headers=token
        )
        return answer.tinker_path

    # ---- sessions

    def get_session(self, session_id: str, access_scope: Scope = "owned") -> Future[GetSessionResponse]:
        """The training runs and samplers of a session."""
        query = ScopeQuery(access_scope=access_scope)
        return self._ask("get_session", "get_session", query=query, session_id=session_id)

    def list_sessions(
        self, limit: int = 20, offset: int = 0, access_scope: Scope = "owned"
    ) -> Future[ListSessionsResponse]:
        """One page of session ids, newest first; `iter_sessions` reads them all."""
        query = ListSessionsQuery(limit=limit, offset=offset, access_scope=access_scope)
        return self._ask("list_sessions", "list_sessions", query=query)

    def iter_sessions(self, *, page_size: int = 100, access_scope: Scope = "owned") -> Pages[str]:
        """All session ids, newest first, page by page (`for` or `async for`)."""

        async def page(limit: int, offset: int) -> tuple[Sequence[str], int | None]:
            return (await self.list_sessions(limit, offset, access_scope)).sessions, None

        check_page_size(page_size)
        return Pages(lambda: ByOffset(page, lambda session: session, page_size))

    def assign_session_project(self, session_id: str, project_id: str) -> Future[None]:
        """Move a session, with its training runs and samplers, into a project."""
        body = AssignProjectRequest(project_id=project_id)
        return self._ask(
            "assign_session_project", "assign_session_project", body=body, session_id=session_id
        )

    def search_sessions(self, request: SessionSearchRequest) -> Future[SessionSearchResponse]:
        """One page of the sessions that match (experimental); `iter_search_sessions` reads them all."""
        warn_user("search_sessions is experimental and may change in any release", ExperimentalWarning)
        return self._search(request)

    def _search(self, request: SessionSearchRequest) -> Future[SessionSearchResponse]:
        if not isinstance(request, SessionSearchRequest):
            raise InvalidArgumentError(f"request: expected a SessionSearchRequest, got {shown(request)}")
        return self._ask("search_sessions", "search_sessions", body=request)

    def iter_search_sessions(self, request: SessionSearchRequest | None = None) -> Pages[SessionSummary]:
        """All sessions that match (experimental), newest first, page by page (`for` or `async for`)."""
        wanted = SessionSearchRequest() if request is None else request
        warn_user("iter_search_sessions is experimental and may change in any release", ExperimentalWarning)

        async def page(cursor: Any) -> tuple[Sequence[SessionSummary], Any]:
            answer = await self._search(wanted.model_copy(update={"cursor": cursor}))
            return answer.sessions, answer.next_cursor

        return Pages(lambda: ByCursor(page, lambda session: session.session_id, wanted.cursor))

    def export_session_trace(self, session_id: str) -> Future[str]:
        """Export a session's timeline as a Perfetto trace; gives an address to download it from."""
        route("session_trace_export").url_path(session_id=session_id)
        return self._start(self._trace(session_id))

    async def _trace(self, session_id: str) -> str:
        told = False
        while True:
            answer: TraceExportResponse = await self._call(
                route("session_trace_export"), "export_session_trace", path={"session_id": session_id}
            )
            if answer.status == "ready" and answer.url:
                return answer.url
            if answer.status != "pending":
                reason = answer.error or "the server gave no address"
                raise TraceExportError(f"Trace export failed for session {session_id}: {reason}")
            if not told:
                told = True
                logger.info("the trace of session %s is being built, which may take a while", session_id)
            await self.holder.connection.clock.sleep(_TRACE_SECONDS)

    def get_sampler(self, sampler_id: str) -> Future[GetSamplerResponse]:
        """What a sampling session samples from."""
        return self._ask("get_sampler", "get_sampler", sampler_id=sampler_id)

    # ---- who is asking

    def whoami(self) -> Future[WhoamiResponse]:
        """Whose credential is in use, as the access token says; no request of its own."""
        return self._start(self._identity())

    async def _identity(self) -> WhoamiResponse:
        connection = self.holder.connection
        settings = await connection.settings()
        token = await connection.auth.header()
        claims = claims_of(token) if is_jwt(token) else {}
        known = settings.pjwt_auth_enabled or str(claims.get("iss", "")).startswith("passport-")
        if not known or not claims.get("sub") or not claims.get("org_id"):
            raise UnsupportedByServerError(
                "whoami() reads an access token, and there is none: this server takes API keys as they "
                "are. Use a token as api_key, or look the key up in the console."
            )
        return WhoamiResponse(
            user_urn=str(claims["sub"]),
            org_urn=f"tml:organization:{claims['org_id']}",
            email=claims.get("email") or None,
        )

    # ---- moved to AdminClient

    def _admin(self, name: str) -> AdminClient:
        warn_user(f"RestClient.{name}() is deprecated: use AdminClient().{name}()", FutureWarning)
        return AdminClient(self.holder)

    def get_audit_log(
        self, event_type: AuditEvents = "all", day: date | None = None
    ) -> Future[AuditLogResponse]:
        """What was done in the organization (deprecated: use `AdminClient`)."""
        return self._admin("get_audit_log").get_audit_log(event_type, day)

    def get_billing_usage(
        self, starting_on: datetime | str, ending_before: datetime | str
    ) -> Future[BillingUsageResponse]:
        """Usage by the hour (deprecated: use `AdminClient`)."""
        return self._admin("get_billing_usage").get_billing_usage(starting_on, ending_before)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> Future[CurrentCheckpointStorageUsageResponse]:
        """What checkpoints take up now (deprecated: use `AdminClient`)."""
        admin = self._admin("get_current_checkpoint_storage_usage")
        return admin.get_current_checkpoint_storage_usage(project_id)

    # ---- the same for `await`

    get_training_run_async: Final = awaited(get_training_run)
    get_training_run_by_tinker_path_async: Final = awaited(get_training_run_by_tinker_path)
    list_training_runs_async: Final = awaited(list_training_runs)
    list_checkpoints_async: Final = awaited(list_checkpoints)
    list_user_checkpoints_async: Final = awaited(list_user_checkpoints)
    get_external_weights_urls_async: Final = awaited(get_external_weights_urls)
    download_checkpoint_async: Final = awaited(download_checkpoint)
    delete_checkpoint_async: Final = awaited(delete_checkpoint)
    delete_checkpoint_from_tinker_path_async: Final = awaited(delete_checkpoint_from_tinker_path)
    publish_checkpoint_from_tinker_path_async: Final = awaited(publish_checkpoint_from_tinker_path)
    unpublish_checkpoint_from_tinker_path_async: Final = awaited(unpublish_checkpoint_from_tinker_path)
    set_checkpoint_ttl_from_tinker_path_async: Final = awaited(set_checkpoint_ttl_from_tinker_path)
    copy_weights_async: Final = awaited(copy_weights)
    get_session_async: Final = awaited(get_session)
    list_sessions_async: Final = awaited(list_sessions)
    assign_session_project_async: Final = awaited(assign_session_project)
    search_sessions_async: Final = awaited(search_sessions)
    export_session_trace_async: Final = awaited(export_session_trace)
    get_sampler_async: Final = awaited(get_sampler)
    get_audit_log_async: Final = awaited(get_audit_log)
    get_billing_usage_async: Final = awaited(get_billing_usage)
    get_current_checkpoint_storage_usage_async: Final = awaited(get_current_checkpoint_storage_usage)


def _some_path(path: object) -> str:
    """A path this service or another may know: only the scheme is checked here."""
    if not isinstance(path, str) or not path.startswith(SCHEME):
        raise InvalidArgumentError(f"Invalid tinker path: {shown(path)} does not start with {SCHEME}")
    return path
