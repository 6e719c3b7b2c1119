"""Tinkex: the Tinker way of fine-tuning, anywhere.

Every name is loaded on first use; the imports below are for type checkers and must match the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._lazy import lazy_exports
from ._version import __title__ as __title__
from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import auth as auth
    from . import errors as errors
    from . import losses as losses
    from . import types as types
    from .client.admin import AdminClient as AdminClient
    from .client.custom_loss import LossHandle as LossHandle
    from .client.custom_loss import PerDatumLossFn as PerDatumLossFn
    from .client.future import APIFuture as APIFuture
    from .client.many import ManySamples as ManySamples
    from .client.many import Sampled as Sampled
    from .client.options import RequestOptions as RequestOptions
    from .client.options import Timeout as Timeout
    from .client.rest import RestClient as RestClient
    from .client.retry_config import RetryConfig as RetryConfig
    from .client.sampling import SamplingClient as SamplingClient
    from .client.service import ServiceClient as ServiceClient
    from .client.streaming import SampleStream as SampleStream
    from .client.streaming import StreamedTokens as StreamedTokens
    from .client.tokenizers import TokenizerSource as TokenizerSource
    from .client.tokenizers import register_tokenizer as register_tokenizer
    from .client.training import TrainingClient as TrainingClient
    from .config import Config as Config
    from .errors import APIConnectionError as APIConnectionError
    from .errors import APIError as APIError
    from .errors import APIResponseValidationError as APIResponseValidationError
    from .errors import APIStatusError as APIStatusError
    from .errors import APITimeoutError as APITimeoutError
    from .errors import AuthenticationError as AuthenticationError
    from .errors import BadRequestError as BadRequestError
    from .errors import BillingError as BillingError
    from .errors import ClientClosedError as ClientClosedError
    from .errors import ConflictError as ConflictError
    from .errors import ExperimentalWarning as ExperimentalWarning
    from .errors import InternalServerError as InternalServerError
    from .errors import InvalidArgumentError as InvalidArgumentError
    from .errors import NotFoundError as NotFoundError
    from .errors import PermissionDeniedError as PermissionDeniedError
    from .errors import RateLimitError as RateLimitError
    from .errors import RequestFailedError as RequestFailedError
    from .errors import TinkerError as TinkerError
    from .errors import UnprocessableEntityError as UnprocessableEntityError
    from .net.events import Event as Event
    from .net.events import context as context
    from .net.trace import trace as trace
    from .notices import TinkexWarning as TinkexWarning
    from .types import AdamOptimizerConfig as AdamOptimizerConfig
    from .types import AdamParams as AdamParams
    from .types import Checkpoint as Checkpoint
    from .types import CheckpointType as CheckpointType
    from .types import Datum as Datum
    from .types import DimuonOptimizerConfig as DimuonOptimizerConfig
    from .types import DimuonParams as DimuonParams
    from .types import DmelChunk as DmelChunk
    from .types import EncodedTextChunk as EncodedTextChunk
    from .types import ForwardBackwardOutput as ForwardBackwardOutput
    from .types import LoraConfig as LoraConfig
    from .types import ModelID as ModelID
    from .types import ModelInput as ModelInput
    from .types import ModelInputChunk as ModelInputChunk
    from .types import OptimParams as OptimParams
    from .types import OptimStepRequest as OptimStepRequest
    from .types import OptimStepResponse as OptimStepResponse
    from .types import ParsedCheckpointTinkerPath as ParsedCheckpointTinkerPath
    from .types import PromptProvenanceSpan as PromptProvenanceSpan
    from .types import SampledProvenanceSpan as SampledProvenanceSpan
    from .types import SampledSequence as SampledSequence
    from .types import SampleRequest as SampleRequest
    from .types import SampleResponse as SampleResponse
    from .types import SamplingParams as SamplingParams
    from .types import StopReason as StopReason
    from .types import TensorData as TensorData
    from .types import TensorDtype as TensorDtype
    from .types import TrainingRun as TrainingRun

_MODULES = {
    "client.service": "ServiceClient",
    "client.training": "TrainingClient",
    "client.tokenizers": "TokenizerSource register_tokenizer",
    "client.streaming": "SampleStream StreamedTokens",
    "client.many": "ManySamples Sampled",
    "client.sampling": "SamplingClient",
    "client.rest": "RestClient",
    "client.admin": "AdminClient",
    "client.future": "APIFuture",
    "client.custom_loss": "LossHandle PerDatumLossFn",
    "client.options": "RequestOptions Timeout",
    "client.retry_config": "RetryConfig",
    "net.events": "Event context",
    "net.trace": "trace",
    "notices": "TinkexWarning",
    "config": "Config",
    "errors": """APIConnectionError APIError APIResponseValidationError APIStatusError
        APITimeoutError AuthenticationError BadRequestError BillingError ClientClosedError
        ConflictError ExperimentalWarning InternalServerError InvalidArgumentError NotFoundError
        PermissionDeniedError RateLimitError RequestFailedError TinkerError
        UnprocessableEntityError""",
    "types": """AdamOptimizerConfig AdamParams Checkpoint CheckpointType Datum
        DimuonOptimizerConfig DimuonParams DmelChunk EncodedTextChunk ForwardBackwardOutput
        LoraConfig ModelID ModelInput ModelInputChunk OptimParams OptimStepRequest
        OptimStepResponse ParsedCheckpointTinkerPath PromptProvenanceSpan SampledProvenanceSpan
        SampledSequence SampleRequest SampleResponse SamplingParams StopReason TensorData
        TensorDtype TrainingRun""",
}
_TABLE = {name: f".{module}" for module, names in _MODULES.items() for name in names.split()}
_TABLE |= {module: f".{module}:" for module in ("auth", "errors", "losses", "types")}

__all__ = sorted([*_TABLE, "__title__", "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]
if not TYPE_CHECKING:  # type checkers know the names, and find those that do not exist
    __getattr__, __dir__ = lazy_exports(__name__, _TABLE)
