"""What users build and read: inputs, settings, results.  No I/O happens here.

Every name is loaded on first use; the imports below are for type checkers and must match the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import lazy_exports

if TYPE_CHECKING:
    from .admin import (
        AuditLogEntry as AuditLogEntry,
    )
    from .admin import (
        AuditLogResponse as AuditLogResponse,
    )
    from .admin import (
        BillingEventInfo as BillingEventInfo,
    )
    from .admin import (
        BillingUsageEvent as BillingUsageEvent,
    )
    from .admin import (
        BillingUsageResponse as BillingUsageResponse,
    )
    from .admin import (
        BillingUsageSession as BillingUsageSession,
    )
    from .admin import (
        CheckpointBillingEvent as CheckpointBillingEvent,
    )
    from .admin import (
        CurrentCheckpointStorageUsageItem as CurrentCheckpointStorageUsageItem,
    )
    from .admin import (
        CurrentCheckpointStorageUsageResponse as CurrentCheckpointStorageUsageResponse,
    )
    from .admin import (
        GetBillingUsageRequest as GetBillingUsageRequest,
    )
    from .admin import (
        GetCurrentCheckpointStorageUsageRequest as GetCurrentCheckpointStorageUsageRequest,
    )
    from .admin import (
        SamplingPrefillBillingEvent as SamplingPrefillBillingEvent,
    )
    from .admin import (
        SamplingSampleBillingEvent as SamplingSampleBillingEvent,
    )
    from .admin import (
        StorageBillingEvent as StorageBillingEvent,
    )
    from .admin import (
        TrainingBillingEvent as TrainingBillingEvent,
    )
    from .arrays import (
        LossyCastWarning as LossyCastWarning,
    )
    from .checkpoint import (
        Checkpoint as Checkpoint,
    )
    from .checkpoint import (
        CheckpointsListResponse as CheckpointsListResponse,
    )
    from .checkpoint import (
        CheckpointType as CheckpointType,
    )
    from .checkpoint import (
        Cursor as Cursor,
    )
    from .checkpoint import (
        ExternalWeightsUrlsResponse as ExternalWeightsUrlsResponse,
    )
    from .checkpoint import (
        ParsedCheckpointTinkerPath as ParsedCheckpointTinkerPath,
    )
    from .chunks import (
        DmelChunk as DmelChunk,
    )
    from .chunks import (
        EncodedTextChunk as EncodedTextChunk,
    )
    from .chunks import (
        ImageAssetPointerChunk as ImageAssetPointerChunk,
    )
    from .chunks import (
        ImageChunk as ImageChunk,
    )
    from .chunks import (
        ModelInputChunk as ModelInputChunk,
    )
    from .chunks import (
        UnknownChunk as UnknownChunk,
    )
    from .custom_loss import (
        CreateCustomLossRequest as CreateCustomLossRequest,
    )
    from .custom_loss import (
        CreateCustomLossResponse as CreateCustomLossResponse,
    )
    from .custom_loss import (
        CustomLossGraph as CustomLossGraph,
    )
    from .custom_loss import (
        CustomLossInput as CustomLossInput,
    )
    from .custom_loss import (
        CustomLossInputRank as CustomLossInputRank,
    )
    from .custom_loss import (
        CustomLossNode as CustomLossNode,
    )
    from .custom_loss import (
        CustomLossNodeOp as CustomLossNodeOp,
    )
    from .datum import (
        Datum as Datum,
    )
    from .datum import (
        LossFnInputs as LossFnInputs,
    )
    from .forward_backward_output import (
        ForwardBackwardOutput as ForwardBackwardOutput,
    )
    from .forward_backward_output import (
        LossFnOutput as LossFnOutput,
    )
    from .futures import (
        FutureCompletion as FutureCompletion,
    )
    from .futures import (
        FutureFailed as FutureFailed,
    )
    from .futures import (
        FutureFinished as FutureFinished,
    )
    from .futures import (
        FutureRetrieveRequest as FutureRetrieveRequest,
    )
    from .futures import (
        FutureRetrieveResponse as FutureRetrieveResponse,
    )
    from .futures import (
        FuturesRetrieveRequest as FuturesRetrieveRequest,
    )
    from .futures import (
        FuturesRetrieveResponse as FuturesRetrieveResponse,
    )
    from .futures import (
        RequestErrorCategory as RequestErrorCategory,
    )
    from .futures import (
        RequestFailedResponse as RequestFailedResponse,
    )
    from .futures import (
        SamplingSessionFuturesTarget as SamplingSessionFuturesTarget,
    )
    from .futures import (
        TryAgainResponse as TryAgainResponse,
    )
    from .futures import (
        UntypedAPIFuture as UntypedAPIFuture,
    )
    from .identifiers import (
        ModelID as ModelID,
    )
    from .identifiers import (
        RequestID as RequestID,
    )
    from .identifiers import (
        StopReason as StopReason,
    )
    from .losses import (
        ForwardBackwardInput as ForwardBackwardInput,
    )
    from .losses import (
        ForwardBackwardRequest as ForwardBackwardRequest,
    )
    from .losses import (
        ForwardRequest as ForwardRequest,
    )
    from .losses import (
        LossFnType as LossFnType,
    )
    from .model import (
        CreateModelRequest as CreateModelRequest,
    )
    from .model import (
        CreateModelResponse as CreateModelResponse,
    )
    from .model import (
        GetInfoRequest as GetInfoRequest,
    )
    from .model import (
        GetInfoResponse as GetInfoResponse,
    )
    from .model import (
        LoraConfig as LoraConfig,
    )
    from .model import (
        ModelData as ModelData,
    )
    from .model import (
        UnloadModelRequest as UnloadModelRequest,
    )
    from .model import (
        UnloadModelResponse as UnloadModelResponse,
    )
    from .model_input import (
        ModelInput as ModelInput,
    )
    from .optimizer import (
        AdamOptimizerConfig as AdamOptimizerConfig,
    )
    from .optimizer import (
        AdamParams as AdamParams,
    )
    from .optimizer import (
        DimuonOptimizerConfig as DimuonOptimizerConfig,
    )
    from .optimizer import (
        DimuonParams as DimuonParams,
    )
    from .optimizer import (
        OptimizerConfig as OptimizerConfig,
    )
    from .optimizer import (
        OptimizerConfigBase as OptimizerConfigBase,
    )
    from .optimizer import (
        OptimParams as OptimParams,
    )
    from .optimizer import (
        OptimParamsBase as OptimParamsBase,
    )
    from .optimizer import (
        OptimStepRequest as OptimStepRequest,
    )
    from .optimizer import (
        OptimStepResponse as OptimStepResponse,
    )
    from .provenance_spans import (
        PromptProvenanceSpan as PromptProvenanceSpan,
    )
    from .provenance_spans import (
        ProvenanceSpans as ProvenanceSpans,
    )
    from .provenance_spans import (
        SampledProvenanceSpan as SampledProvenanceSpan,
    )
    from .sample_response import (
        PromptAltTokens as PromptAltTokens,
    )
    from .sample_response import (
        SampledSequence as SampledSequence,
    )
    from .sample_response import (
        SampleResponse as SampleResponse,
    )
    from .sampling import (
        CreateSamplingSessionRequest as CreateSamplingSessionRequest,
    )
    from .sampling import (
        CreateSamplingSessionResponse as CreateSamplingSessionResponse,
    )
    from .sampling import (
        GetSamplerResponse as GetSamplerResponse,
    )
    from .sampling import (
        JoinSamplingSessionRequest as JoinSamplingSessionRequest,
    )
    from .sampling import (
        JoinSamplingSessionResponse as JoinSamplingSessionResponse,
    )
    from .sampling import (
        SampleRequest as SampleRequest,
    )
    from .sampling import (
        SamplingParams as SamplingParams,
    )
    from .service import (
        AuthTokenResponse as AuthTokenResponse,
    )
    from .service import (
        ClientConfigRequest as ClientConfigRequest,
    )
    from .service import (
        ClientConfigResponse as ClientConfigResponse,
    )
    from .service import (
        ClientDynamicConfigResponse as ClientDynamicConfigResponse,
    )
    from .service import (
        GetServerCapabilitiesResponse as GetServerCapabilitiesResponse,
    )
    from .service import (
        HealthResponse as HealthResponse,
    )
    from .service import (
        SupportedModel as SupportedModel,
    )
    from .service import (
        WhoamiResponse as WhoamiResponse,
    )
    from .session import (
        AccessibleSearchOwner as AccessibleSearchOwner,
    )
    from .session import (
        ActiveSessionStatusQuery as ActiveSessionStatusQuery,
    )
    from .session import (
        CancelledSessionStatusQuery as CancelledSessionStatusQuery,
    )
    from .session import (
        ClientFinishedSessionStatusQuery as ClientFinishedSessionStatusQuery,
    )
    from .session import (
        ClientSessionFinished as ClientSessionFinished,
    )
    from .session import (
        ClientSessionFinishErrored as ClientSessionFinishErrored,
    )
    from .session import (
        ClientSessionFinishInterrupted as ClientSessionFinishInterrupted,
    )
    from .session import (
        ClientSessionFinishReason as ClientSessionFinishReason,
    )
    from .session import (
        ClientSessionFinishReasonType as ClientSessionFinishReasonType,
    )
    from .session import (
        ClientSessionFinishSuccess as ClientSessionFinishSuccess,
    )
    from .session import (
        CreateSessionRequest as CreateSessionRequest,
    )
    from .session import (
        CreateSessionResponse as CreateSessionResponse,
    )
    from .session import (
        FailedSessionStatusQuery as FailedSessionStatusQuery,
    )
    from .session import (
        GetSessionResponse as GetSessionResponse,
    )
    from .session import (
        ListSessionsResponse as ListSessionsResponse,
    )
    from .session import (
        OwnSearchOwner as OwnSearchOwner,
    )
    from .session import (
        SearchOwner as SearchOwner,
    )
    from .session import (
        SessionActive as SessionActive,
    )
    from .session import (
        SessionCancelled as SessionCancelled,
    )
    from .session import (
        SessionFailed as SessionFailed,
    )
    from .session import (
        SessionFailedReason as SessionFailedReason,
    )
    from .session import (
        SessionFailedRequestReason as SessionFailedRequestReason,
    )
    from .session import (
        SessionFailedSamplingSessionReason as SessionFailedSamplingSessionReason,
    )
    from .session import (
        SessionFailedTrainingRunReason as SessionFailedTrainingRunReason,
    )
    from .session import (
        SessionHeartbeatRequest as SessionHeartbeatRequest,
    )
    from .session import (
        SessionHeartbeatResponse as SessionHeartbeatResponse,
    )
    from .session import (
        SessionSearchCursor as SessionSearchCursor,
    )
    from .session import (
        SessionSearchRequest as SessionSearchRequest,
    )
    from .session import (
        SessionSearchResponse as SessionSearchResponse,
    )
    from .session import (
        SessionStatus as SessionStatus,
    )
    from .session import (
        SessionStatusQuery as SessionStatusQuery,
    )
    from .session import (
        SessionSummary as SessionSummary,
    )
    from .session import (
        UserSearchOwner as UserSearchOwner,
    )
    from .telemetry import (
        EventType as EventType,
    )
    from .telemetry import (
        GenericEvent as GenericEvent,
    )
    from .telemetry import (
        SessionEndEvent as SessionEndEvent,
    )
    from .telemetry import (
        SessionStartEvent as SessionStartEvent,
    )
    from .telemetry import (
        Severity as Severity,
    )
    from .telemetry import (
        TelemetryBatch as TelemetryBatch,
    )
    from .telemetry import (
        TelemetryEvent as TelemetryEvent,
    )
    from .telemetry import (
        TelemetryResponse as TelemetryResponse,
    )
    from .telemetry import (
        TelemetrySendRequest as TelemetrySendRequest,
    )
    from .telemetry import (
        UnhandledExceptionEvent as UnhandledExceptionEvent,
    )
    from .tensor_data import (
        TensorData as TensorData,
    )
    from .tensor_data import (
        TensorDtype as TensorDtype,
    )
    from .topk_logprobs import (
        TopkLogprobs as TopkLogprobs,
    )
    from .training_run import (
        TrainingRun as TrainingRun,
    )
    from .training_run import (
        TrainingRunsResponse as TrainingRunsResponse,
    )
    from .variant import (
        UnknownVariant as UnknownVariant,
    )
    from .weights import (
        CopyWeightsRequest as CopyWeightsRequest,
    )
    from .weights import (
        CopyWeightsResponse as CopyWeightsResponse,
    )
    from .weights import (
        LoadWeightsRequest as LoadWeightsRequest,
    )
    from .weights import (
        LoadWeightsResponse as LoadWeightsResponse,
    )
    from .weights import (
        SaveWeightsExternalRequest as SaveWeightsExternalRequest,
    )
    from .weights import (
        SaveWeightsExternalResponse as SaveWeightsExternalResponse,
    )
    from .weights import (
        SaveWeightsExternalResponseInternal as SaveWeightsExternalResponseInternal,
    )
    from .weights import (
        SaveWeightsForSamplerRequest as SaveWeightsForSamplerRequest,
    )
    from .weights import (
        SaveWeightsForSamplerResponse as SaveWeightsForSamplerResponse,
    )
    from .weights import (
        SaveWeightsForSamplerResponseInternal as SaveWeightsForSamplerResponseInternal,
    )
    from .weights import (
        SaveWeightsRequest as SaveWeightsRequest,
    )
    from .weights import (
        SaveWeightsResponse as SaveWeightsResponse,
    )
    from .weights import (
        WeightsInfoResponse as WeightsInfoResponse,
    )

_MODULES = {
    "admin": """AuditLogEntry AuditLogResponse BillingEventInfo
        BillingUsageEvent BillingUsageResponse BillingUsageSession
        CheckpointBillingEvent CurrentCheckpointStorageUsageItem CurrentCheckpointStorageUsageResponse
        GetBillingUsageRequest GetCurrentCheckpointStorageUsageRequest SamplingPrefillBillingEvent
        SamplingSampleBillingEvent StorageBillingEvent TrainingBillingEvent""",
    "arrays": """LossyCastWarning""",
    "checkpoint": """Checkpoint CheckpointType CheckpointsListResponse
        Cursor ExternalWeightsUrlsResponse ParsedCheckpointTinkerPath""",
    "chunks": """DmelChunk EncodedTextChunk ImageAssetPointerChunk
        ImageChunk ModelInputChunk UnknownChunk""",
    "custom_loss": """CreateCustomLossRequest CreateCustomLossResponse CustomLossGraph
        CustomLossInput CustomLossInputRank CustomLossNode
        CustomLossNodeOp""",
    "datum": """Datum LossFnInputs""",
    "forward_backward_output": """ForwardBackwardOutput LossFnOutput""",
    "futures": """FutureCompletion FutureFailed FutureFinished
        FutureRetrieveRequest FutureRetrieveResponse FuturesRetrieveRequest
        FuturesRetrieveResponse RequestErrorCategory RequestFailedResponse
        SamplingSessionFuturesTarget TryAgainResponse UntypedAPIFuture""",
    "identifiers": """ModelID RequestID StopReason""",
    "losses": """ForwardBackwardInput ForwardBackwardRequest ForwardRequest
        LossFnType""",
    "model": """CreateModelRequest CreateModelResponse GetInfoRequest
        GetInfoResponse LoraConfig ModelData
        UnloadModelRequest UnloadModelResponse""",
    "model_input": """ModelInput""",
    "optimizer": """AdamOptimizerConfig AdamParams DimuonOptimizerConfig
        DimuonParams OptimParams OptimParamsBase
        OptimStepRequest OptimStepResponse OptimizerConfig
        OptimizerConfigBase""",
    "provenance_spans": """PromptProvenanceSpan ProvenanceSpans SampledProvenanceSpan""",
    "sample_response": """PromptAltTokens SampleResponse SampledSequence""",
    "sampling": """CreateSamplingSessionRequest CreateSamplingSessionResponse GetSamplerResponse
        JoinSamplingSessionRequest JoinSamplingSessionResponse SampleRequest
        SamplingParams""",
    "service": """AuthTokenResponse ClientConfigRequest ClientConfigResponse
        ClientDynamicConfigResponse GetServerCapabilitiesResponse HealthResponse
        SupportedModel WhoamiResponse""",
    "session": """AccessibleSearchOwner ActiveSessionStatusQuery CancelledSessionStatusQuery
        ClientFinishedSessionStatusQuery ClientSessionFinishErrored ClientSessionFinishInterrupted
        ClientSessionFinishReason ClientSessionFinishReasonType ClientSessionFinishSuccess
        ClientSessionFinished CreateSessionRequest CreateSessionResponse
        FailedSessionStatusQuery GetSessionResponse ListSessionsResponse
        OwnSearchOwner SearchOwner SessionActive
        SessionCancelled SessionFailed SessionFailedReason
        SessionFailedRequestReason SessionFailedSamplingSessionReason SessionFailedTrainingRunReason
        SessionHeartbeatRequest SessionHeartbeatResponse SessionSearchCursor
        SessionSearchRequest SessionSearchResponse SessionStatus
        SessionStatusQuery SessionSummary UserSearchOwner""",
    "telemetry": """EventType GenericEvent SessionEndEvent
        SessionStartEvent Severity TelemetryBatch
        TelemetryEvent TelemetryResponse TelemetrySendRequest
        UnhandledExceptionEvent""",
    "tensor_data": """TensorData TensorDtype""",
    "topk_logprobs": """TopkLogprobs""",
    "training_run": """TrainingRun TrainingRunsResponse""",
    "variant": """UnknownVariant""",
    "weights": """CopyWeightsRequest CopyWeightsResponse LoadWeightsRequest
        LoadWeightsResponse SaveWeightsExternalRequest SaveWeightsExternalResponse
        SaveWeightsExternalResponseInternal SaveWeightsForSamplerRequest SaveWeightsForSamplerResponse
        SaveWeightsForSamplerResponseInternal SaveWeightsRequest SaveWeightsResponse
        WeightsInfoResponse""",
}
_TABLE = {name: f".{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_TABLE)  # pyright: ignore[reportUnsupportedDunderAll]
if not TYPE_CHECKING:  # type checkers know the names, and find those that do not exist
    __getattr__, __dir__ = lazy_exports(__name__, _TABLE)
