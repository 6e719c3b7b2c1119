"""This server's limits as the API's description states them: by record and field, in JSON schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wire.paths import NAME
from .admission import LONGEST_STOP, LOSS_INPUTS, MOST_STOPS
from .handlers_sessions import LONGEST_PROJECT
from .works import HIGHEST_NUMBER, OPTIMIZERS

if TYPE_CHECKING:
    from .service import Service

__all__ = ["limits_of"]

LONGEST_NUMBER = (1 << 63) - 1
"""Numbers of operations and samples have 64 bits."""

_NOT_BELOW_ZERO = {"minimum": 0}
_SHARE = {"minimum": 0, "exclusiveMaximum": 1}
_ADAM: dict[str, dict[str, Any]] = {
    "learning_rate": _NOT_BELOW_ZERO,
    "beta1": _SHARE,
    "beta2": _SHARE,
    "eps": _NOT_BELOW_ZERO,
    "weight_decay": _NOT_BELOW_ZERO,
    "grad_clip_norm": _NOT_BELOW_ZERO,
}


def limits_of(service: Service) -> dict[str, dict[str, dict[str, Any]]]:
    """Narrower schemas of single fields."""
    limits = service.options.limits
    served = {"enum": list(service.catalogue.by_name)}
    name = {"pattern": f"^{NAME}$"}
    number = {"minimum": 1, "maximum": LONGEST_NUMBER}
    made = {"minimum": 0, "maximum": HIGHEST_NUMBER}
    ttl = {"minimum": limits.shortest_ttl, "maximum": limits.longest_ttl}
    topk = {"minimum": 0, "maximum": limits.topk}
    optimizer = {"properties": {"type": {"enum": list(OPTIMIZERS)}}}
    saved: dict[str, dict[str, Any]] = {"path": name, "ttl_seconds": ttl, "seq_id": number}
    return {
        "CreateModelRequest": {"base_model": served, "model_seq_id": made, "optimizer_config": optimizer},
        "LoraConfig": {"rank": {"minimum": 1, "maximum": limits.rank}},
        "CreateSamplingSessionRequest": {"base_model": served, "sampling_session_seq_id": made},
        "CreateCustomLossRequest": {"custom_loss_seq_id": made, "inputs": {"minItems": 1, "maxItems": 16}},
        "LoadWeightsBody": {
            "base_model": served,
            "seq_id": number,
            "model_seq_id": made,
            "optimizer_config": optimizer,
        },
        "SampleRequest": {
            "base_model": served,
            "num_samples": {"minimum": 1, "maximum": limits.num_samples},
            "topk_prompt_logprobs": topk,
            "topk_sample_logprobs": topk,
            "prompt_alt_tokens_k": topk,
            "prompt_logprobs_last_n": {"minimum": 1},
            "seq_id": {"minimum": 0, "maximum": LONGEST_NUMBER},
        },
        "SamplingParams": _sampling(service),
        "AdamParams": _ADAM,
        "OptimStepRequest": {"seq_id": number},
        "ForwardBody": {"seq_id": number},
        "ForwardBackwardBody": {"seq_id": number},
        "SaveWeightsRequest": saved,
        "SaveWeightsForSamplerRequest": {**saved, "sampling_session_seq_id": made},
        "SaveWeightsExternalRequest": saved,
        "SetTtlRequest": {"ttl_seconds": ttl},
        "CopyWeightsRequest": {"ttl_seconds": ttl, "model_seq_id": made},
        "AssignProjectRequest": {"project_id": {"minLength": 1, "maxLength": LONGEST_PROJECT}},
        "EncodedTextChunk": {"tokens": {"items": _token(service)}},
        "ForwardBackwardInput": {
            "data": {"minItems": 1, "maxItems": limits.datums},
            "loss_fn": {"enum": list(LOSS_INPUTS)},
        },
    }


def _token(service: Service) -> dict[str, Any]:
    """A token some model of this server knows."""
    most = max(facts.vocab_size for facts in service.catalogue.by_name.values())
    return {"type": "integer", "minimum": 0, "maximum": most - 1}


def _sampling(service: Service) -> dict[str, dict[str, Any]]:
    text = {"type": "string", "minLength": 1, "maxLength": LONGEST_STOP}
    stops = [
        text,
        *({"type": "array", "items": each, "maxItems": MOST_STOPS} for each in (text, _token(service))),
    ]
    context = max(facts.context for facts in service.catalogue.by_name.values())
    return {
        "max_tokens": {"minimum": 0, "maximum": context},
        "stop": {"anyOf": stops},
        "temperature": _NOT_BELOW_ZERO,
        "top_k": {"minimum": -1},
        "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    }
