"""One body per route with every field set, in the form a server gives it back."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from tinkex.wire.jsonbody import decode, encode
from tinkex.wire.routes import ROUTES

BODIES = {name: route.server_request for name, route in ROUTES.items() if route.server_request is not None}

FULL_DATUM: dict[str, Any] = {
    "model_input": {
        "chunks": [
            {"tokens": [1, 2], "type": "encoded_text"},
            {"data": "iVBORw==", "format": "png", "expected_tokens": 5, "type": "image"},
            {"location": "s3://x", "format": "jpeg", "expected_tokens": 2, "type": "image_asset_pointer"},
            {"dmel": "AAEC", "type": "dmel"},
        ]
    },
    "loss_fn_inputs": {
        "target_tokens": {"data": [2, 3], "dtype": "int64", "shape": [2]},
        "weights": {
            "data": [0.5],
            "dtype": "float32",
            "shape": [2, 3],
            "sparse_crow_indices": [0, 1, 1],
            "sparse_col_indices": [2],
        },
    },
}
FULL_PASS: dict[str, Any] = {
    "data": [FULL_DATUM],
    "loss_fn": "ppo",
    "loss_fn_config": {"beta": 0.1, "tag": "x"},
}
EVENT: dict[str, Any] = {
    "event_id": "e",
    "event_session_index": 1,
    "severity": "INFO",
    "timestamp": "2026-01-01T00:00:00Z",
}

FULL: dict[str, dict[str, Any]] = {
    "client_config": {"sdk_version": "1"},
    "client_dynamic_config": {"sdk_version": "1"},
    "auth_token": {},
    "create_session": {
        "tags": ["a"],
        "user_metadata": {"k": 1},
        "sdk_version": "1",
        "project_id": "p",
        "display_name": "d",
        "type": "create_session",
    },
    "session_heartbeat": {"session_id": "s", "type": "session_heartbeat"},
    "finish_session": {"reason": {"type": "errored"}, "detail": "d"},
    "create_model": {
        "session_id": "s",
        "model_seq_id": 1,
        "base_model": "b",
        "user_metadata": {"k": 1},
        "lora_config": {
            "rank": 8,
            "seed": 3,
            "train_unembed": False,
            "train_mlp": False,
            "train_attn": False,
        },
        "optimizer_config": {"type": "dimuon", "version": 1},
        "type": "create_model",
    },
    "get_info": {"model_id": "m", "type": "get_info"},
    "unload_model": {"model_id": "m", "type": "unload_model"},
    "forward": {"forward_input": FULL_PASS, "model_id": "m", "seq_id": 1},
    "forward_backward": {"forward_backward_input": FULL_PASS, "model_id": "m", "seq_id": 1},
    "optim_step": {
        "adam_params": {
            "learning_rate": 0.25,
            "beta1": 0.5,
            "beta2": 0.25,
            "eps": 0.125,
            "weight_decay": 0.5,
            "grad_clip_norm": 2.0,
        },
        "model_id": "m",
        "seq_id": 1,
        "type": "optim_step",
    },
    "save_weights": {
        "model_id": "m",
        "path": "p",
        "seq_id": 1,
        "ttl_seconds": 3600,
        "overwrite": True,
        "user_metadata": {"k": "v"},
        "type": "save_weights",
    },
    "save_weights_for_sampler": {
        "model_id": "m",
        "path": "p",
        "sampling_session_seq_id": 0,
        "seq_id": 1,
        "ttl_seconds": 3600,
        "user_metadata": {"k": "v"},
        "type": "save_weights_for_sampler",
    },
    "save_weights_external": {
        "model_id": "m",
        "path": "p",
        "seq_id": 1,
        "ttl_seconds": 3600,
        "age_encryption_recipients": ["age1"],
        "type": "save_weights_external",
    },
    "load_weights": {
        "model_id": "m",
        "seq_id": 1,
        "session_id": "s",
        "model_seq_id": 2,
        "base_model": "b",
        "user_metadata": {"k": 1},
        "path": "tinker://m/weights/p",
        "optimizer": False,
        "optimizer_config": {"type": "adamw"},
        "weights_access_token": "t",
        "type": "load_weights",
    },
    "weights_info": {"tinker_path": "tinker://m/weights/p"},
    "copy_weights": {
        "session_id": "s",
        "model_seq_id": 2,
        "destination_project_id": "p",
        "source_path": "tinker://m/weights/p",
        "ttl_seconds": 3600,
        "weights_access_token": "t",
    },
    "create_custom_loss": {
        "session_id": "s",
        "custom_loss_seq_id": 1,
        "name": "n",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {
            "format": 1,
            "nodes": [
                {"op": "output", "name": "o", "target": "t", "args": [{"ref": "a"}], "kwargs": {"k": 1}}
            ],
        },
        "type": "create_custom_loss",
    },
    "create_sampling_session": {
        "session_id": "s",
        "sampling_session_seq_id": 1,
        "base_model": "b",
        "model_path": "tinker://m/sampler_weights/p",
        "type": "create_sampling_session",
    },
    "join_sampling_session": {"sampling_session_id": "s", "type": "join_sampling_session"},
    "asample": {
        "num_samples": 2,
        "prompt": FULL_DATUM["model_input"],
        "sampling_params": {
            "max_tokens": 4,
            "seed": 7,
            "stop": ["a"],
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.5,
        },
        "base_model": "b",
        "model_path": "tinker://m/sampler_weights/p",
        "sampling_session_id": "s",
        "seq_id": 10**18,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 1,
        "topk_sample_logprobs": 1,
        "target_prompt_logprobs": {"data": [1, -1], "dtype": "int64", "shape": [2, 1]},
        "prompt_alt_tokens_k": 1,
        "prompt_logprobs_last_n": 1,
        "record_stability_info": True,
        "type": "sample",
    },
    "retrieve_future": {"request_id": "r", "allow_metadata_only": True},
    "retrieve_futures": {
        "target": {"type": "sampling_session", "sampling_session_id": "s", "cloned_sampler_id": 1},
        "prev_cursor": 3,
        "timeout": 1.5,
        "retrieved_request_ids": ["r"],
    },
    "cancel_future": {"request_id": "r"},
    "telemetry": {
        "events": [
            {**EVENT, "event": "SESSION_START"},
            {**EVENT, "event": "SESSION_END", "duration": "1 day"},
            {
                **EVENT,
                "event": "UNHANDLED_EXCEPTION",
                "error_type": "T",
                "error_message": "m",
                "traceback": "t",
            },
            {**EVENT, "event": "GENERIC_EVENT", "event_name": "n", "event_data": {"k": 1}},
        ],
        "platform": "Linux",
        "sdk_version": "1",
        "session_id": "s",
        "process_uuid": "u",
    },
    "set_checkpoint_ttl": {"ttl_seconds": 3600},
    "search_sessions": {
        "session_id": "s",
        "project_ids": ["p"],
        "user_metadata": {"k": "v"},
        "display_name": "d",
        "owner": {"type": "user", "owner_urns": ["u"]},
        "statuses": [{"type": "active"}, {"type": "client_finished", "reasons": ["success"]}],
        "limit": 10,
        "cursor": {"last_created_at": "2026-01-01T00:00:00Z", "last_session_id": "s"},
    },
    "assign_session_project": {"project_id": "p"},
}
FULL["sample_stream"] = FULL["asample"]


def read(name: str, body: Any) -> Any:
    """A body as the server understands it, in its plain form."""
    return json.loads(encode(decode(BODIES[name], json.dumps(body).encode())))


# Objects that are tables: every key in them means something.
TABLES = {"user_metadata", "loss_fn_config", "loss_fn_inputs", "kwargs", "args", "event_data"}


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every object with named fields."""
    if isinstance(value, dict):
        if not path or path[-1] not in TABLES:
            yield path
        for key, inner in value.items():
            if key not in TABLES or key == "loss_fn_inputs":
                yield from objects(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, (*path, index))


def changed(body: Any, path: tuple[Any, ...], change: Callable[[Any], None]) -> Any:
    """A copy of a body with one place in it changed."""
    body = copy.deepcopy(body)
    place = body
    for step in path:
        place = place[step]
    change(place)
    return body
