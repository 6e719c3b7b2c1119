"""This server's limits as the API's description states them: by record and field, in JSON schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wire.paths import NAME
from .admission import LOSS_INPUTS

if TYPE_CHECKING:
    from .service import Service

__all__ = ["limits_of"]

LONGEST_NUMBER = (1 << 63) - 1
"""Numbers of operations and samples have 64 bits."""


def limits_of(service: Service) -> dict[str, dict[str, dict[str, Any]]]:
    """Narrower schemas of single fields."""
    limits = service.options.limits
    served = {"enum": list(service.catalogue.by_name)}
    name = {"pattern": f"^{NAME}$"}
    number = {"minimum": 1, "maximum": LONGEST_NUMBER}
    ttl = {"minimum": limits.shortest_ttl, "maximum": limits.longest_ttl}
    topk = {"minimum": 0, "maximum": limits.topk}
    saved: dict[str, dict[str, Any]] = {"path": name, "ttl_seconds": ttl, "seq_id": number}
    return {
        "CreateModelRequest": {
            "base_model": served,
            "model_seq_id": {"minimum": 0, "maximum": LONGEST_NUMBER},
        },
        "LoraConfig": {"rank": {"minimum": 1, "maximum": limits.rank}},
        "CreateSamplingSessionRequest": {
            "base_model": served,
            "sampling_session_seq_id": {"minimum": 0, "maximum": LONGEST_NUMBER},
        },
        "SampleRequest": {
            "base_model": served,
            "num_samples": {"minimum": 1, "maximum": limits.num_samples},
            "topk_prompt_logprobs": topk,
            "topk_sample_logprobs": topk,
            "prompt_alt_tokens_k": topk,
            "seq_id": {"minimum": 0, "maximum": LONGEST_NUMBER},
        },
        "OptimStepRequest": {"seq_id": number},
        "ForwardBody": {"seq_id": number},
        "ForwardBackwardBody": {"seq_id": number},
        "SaveWeightsRequest": saved,
        "SaveWeightsForSamplerRequest": saved,
        "SaveWeightsExternalRequest": saved,
        "SetTtlRequest": {"ttl_seconds": ttl},
        "CopyWeightsRequest": {"ttl_seconds": ttl},
        "ForwardBackwardInput": {
            "data": {"minItems": 1, "maxItems": limits.datums},
            "loss_fn": {"enum": list(LOSS_INPUTS)},
        },
    }
