"""Results from protobuf bytes, under the official SDK's module path and names."""

from __future__ import annotations

from ..types.forward_backward_output import ForwardBackwardOutput
from ..types.sample_response import SampleResponse
from ..wire.passes import decode_output as deserialize_forward_backward_output
from ..wire.samples import decode_sample_response

__all__ = [
    "PROTO_SUPPORTED_TYPES",
    "deserialize_forward_backward_output",
    "deserialize_proto_response",
    "deserialize_sample_response",
]

PROTO_SUPPORTED_TYPES: set[type] = {SampleResponse, ForwardBackwardOutput}


def deserialize_sample_response(proto_bytes: bytes) -> SampleResponse:
    """A sampling result; its sequences have made-up ids, as the true ones travel in the ticket."""
    return decode_sample_response(proto_bytes)


def deserialize_proto_response(proto_bytes: bytes, model_cls: type) -> object:
    """A result of the given class."""
    if model_cls is SampleResponse:
        return deserialize_sample_response(proto_bytes)
    if model_cls is ForwardBackwardOutput:
        return deserialize_forward_backward_output(proto_bytes)
    raise ValueError(f"results of class {model_cls.__name__} do not travel as protobuf")
