"""Requests as protobuf messages, under the official SDK's module path and names."""

from __future__ import annotations

from ..types import ForwardBackwardRequest
from ..wire import tinker_public_pb2 as pb
from ..wire.passes import PassRequest, encode_request

__all__ = ["forward_backward_request_to_proto"]


def forward_backward_request_to_proto(request: ForwardBackwardRequest) -> pb.ForwardBackwardRequest:
    """A forward and backward pass as a message; a missing `seq_id` is written as 0."""
    given = request.forward_backward_input
    passed = PassRequest(
        request.model_id, request.seq_id or 0, given.data, given.loss_fn, given.loss_fn_config
    )
    return pb.ForwardBackwardRequest.FromString(encode_request(passed))
