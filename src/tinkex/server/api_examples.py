"""Examples for the API's description: what is sent to each route, and what comes back.

Ids are those of one small story: a session, its first model, its checkpoint and its first sampler.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PARAMETERS", "REQUESTS", "RESPONSES", "RESULTS"]

SESSION = "s-0f3a9c21d7b84e65"
RUN = f"{SESSION}:train:0"
SAMPLER = f"{SESSION}:sample:0"
CHECKPOINT = f"tinker://{RUN}/weights/step-100"
MODEL = "Qwen/Qwen3-8B"
WHEN = "2026-11-15T06:36:34Z"
LATER = "2026-11-15T07:36:34Z"
URL = "http://127.0.0.1:8787/files/6919c2d2.Y2hlY2twb2ludHM.mZ5x/adapter_model.safetensors"

PARAMETERS: dict[str, str] = {
    "session_id": SESSION,
    "training_run_id": RUN,
    "checkpoint_id": "weights/step-100",
    "sampler_id": SAMPLER,
    "model_name": MODEL,
    "file": "tokenizer.json",
    "starting_on": "2026-11-15T00:00:00Z",
    "ending_before": "2026-11-16T00:00:00Z",
    "day": "2026-11-15",
    "project_id": "my-project",
}
"""Values of path and query parameters, by name."""

_TEXT = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]}
_TENSORS = {
    "target_tokens": {"data": [6, 7, 8], "dtype": "int64", "shape": [3]},
    "weights": {"data": [0.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
}
_PASS = {"data": [{"model_input": _TEXT, "loss_fn_inputs": _TENSORS}], "loss_fn": "cross_entropy"}
_SAMPLE = {
    "sampling_session_id": SAMPLER,
    "seq_id": 0,
    "num_samples": 2,
    "prompt": _TEXT,
    "sampling_params": {"max_tokens": 16, "temperature": 0.7, "stop": ["\n"]},
    "type": "sample",
}
_OPERATION = {"model_id": RUN}

REQUESTS: dict[str, Any] = {
    "client_config": {"sdk_version": "0.36.0"},
    "client_dynamic_config": {"sdk_version": "0.36.0"},
    "auth_token": {},
    "create_session": {"tags": [], "user_metadata": {"purpose": "demo"}, "sdk_version": "0.36.0"},
    "session_heartbeat": {"session_id": SESSION},
    "finish_session": {"reason": {"type": "success"}, "detail": None},
    "create_model": {
        "session_id": SESSION,
        "model_seq_id": 0,
        "base_model": MODEL,
        "lora_config": {"rank": 32, "train_unembed": True, "train_mlp": True, "train_attn": True},
    },
    "get_info": _OPERATION,
    "unload_model": _OPERATION,
    "forward": {**_OPERATION, "seq_id": 1, "forward_input": _PASS},
    "forward_backward": {**_OPERATION, "seq_id": 1, "forward_backward_input": _PASS},
    "optim_step": {**_OPERATION, "seq_id": 2, "adam_params": {"learning_rate": 0.0001, "beta2": 0.95}},
    "save_weights": {**_OPERATION, "seq_id": 3, "path": "step-100", "ttl_seconds": 604800},
    "save_weights_for_sampler": {**_OPERATION, "seq_id": 4, "sampling_session_seq_id": 0},
    "save_weights_external": {**_OPERATION, "seq_id": 5, "path": "final"},
    "load_weights": {**_OPERATION, "seq_id": 6, "path": CHECKPOINT, "optimizer": True},
    "weights_info": {"tinker_path": CHECKPOINT},
    "copy_weights": {"source_path": CHECKPOINT, "destination_project_id": "my-project"},
    "create_custom_loss": {
        "session_id": SESSION,
        "custom_loss_seq_id": 0,
        "name": "mean",
        "inputs": [{"name": "logprobs", "rank": 1}],
        "graph": {
            "format": 1,
            "nodes": [
                {"op": "placeholder", "name": "logprobs", "target": "logprobs", "args": [], "kwargs": {}},
                {
                    "op": "call_method",
                    "name": "m",
                    "target": "mean",
                    "args": [{"ref": "logprobs"}],
                    "kwargs": {},
                },
                {
                    "op": "output",
                    "name": "output",
                    "target": "output",
                    "args": [{"ref": "m"}],
                    "kwargs": {},
                },
            ],
        },
    },
    "create_sampling_session": {"session_id": SESSION, "sampling_session_seq_id": 1, "base_model": MODEL},
    "join_sampling_session": {"sampling_session_id": SAMPLER},
    "asample": _SAMPLE,
    "sample_stream": {**_SAMPLE, "num_samples": 1},
    "retrieve_future": {"request_id": f"{RUN}:1"},
    "retrieve_futures": {
        "target": {"type": "sampling_session", "sampling_session_id": SAMPLER, "cloned_sampler_id": 0},
        "prev_cursor": 0,
        "retrieved_request_ids": [],
    },
    "cancel_future": {"request_id": f"{SAMPLER}:0"},
    "telemetry": {"events": [], "platform": "Linux", "sdk_version": "0.36.0", "session_id": SESSION},
    "set_checkpoint_ttl": {"ttl_seconds": 7200},
    "search_sessions": {"user_metadata": {"purpose": "demo"}, "owner": {"type": "own"}, "limit": 50},
    "assign_session_project": {"project_id": "my-project"},
}

_LISTED = {
    "checkpoint_id": "weights/step-100",
    "checkpoint_type": "training",
    "time": WHEN,
    "tinker_path": CHECKPOINT,
    "size_bytes": 349208640,
    "public": False,
}
_RUN = {
    "training_run_id": RUN,
    "base_model": MODEL,
    "model_owner": "ann",
    "is_lora": True,
    "corrupted": False,
    "lora_rank": 32,
    "last_request_time": WHEN,
    "last_checkpoint": _LISTED,
}
_CURSOR = {"offset": 0, "limit": 20, "total_count": 1}
_TICKET = {"request_id": f"{RUN}:1", "model_id": RUN}

RESPONSES: dict[str, Any] = {
    "health": {"status": "ok"},
    "get_server_capabilities": {
        "supported_models": [
            {"model_name": MODEL, "max_context_length": 32768, "trainable": True, "sampleable": True}
        ]
    },
    "client_config": {"pjwt_auth_enabled": False, "parallel_fwdbwd_chunks": False},
    "client_dynamic_config": {"sample_cancel_enabled": True},
    "auth_token": {"jwt": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.c2lnbmF0dXJl"},
    "get_api_key": {"key_id": 1, "name": "laptop", "note": "", "details": {"org_details": {"name": "ann"}}},
    "delete_api_key": {},
    "create_session": {"session_id": SESSION},
    "session_heartbeat": {"type": "session_heartbeat"},
    "finish_session": {},
    "get_info": {
        "model_data": {"arch": "qwen3", "model_name": MODEL, "tokenizer_id": MODEL},
        "model_id": RUN,
        "is_lora": True,
        "lora_rank": 32,
    },
    "weights_info": {"base_model": MODEL, "is_lora": True, "lora_rank": 32},
    "copy_weights": {"tinker_path": "tinker://copy-51d0b7ee93c2/weights/step-100"},
    "create_sampling_session": {"sampling_session_id": f"{SESSION}:sample:1"},
    "join_sampling_session": {"client_counter": 1},
    "asample": {"request_id": f"{SAMPLER}:0", "sample_sequence_ids": [f"{SAMPLER}:0:0", f"{SAMPLER}:0:1"]},
    "retrieve_futures": {
        "completions": [
            {"state": "finished", "request_id": f"{SAMPLER}:0", "response_payload_uncompressed_size": 412}
        ],
        "cursor": 7,
    },
    "cancel_future": {},
    "telemetry": {"status": "accepted"},
    "list_training_runs": {"training_runs": [_RUN], "cursor": _CURSOR},
    "get_training_run": _RUN,
    "list_checkpoints": {"checkpoints": [_LISTED]},
    "list_model_checkpoints": {"checkpoints": [_LISTED]},
    "list_user_checkpoints": {"checkpoints": [_LISTED], "cursor": {**_CURSOR, "limit": 100}},
    "list_tokenizer_files": {
        "model_name": MODEL,
        "files": [
            {
                "name": "tokenizer.json",
                "size_bytes": 11422654,
                "sha256": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            }
        ],
    },
    "delete_checkpoint": {},
    "publish_checkpoint": {},
    "unpublish_checkpoint": {},
    "set_checkpoint_ttl": {},
    "checkpoint_archive": {"url": URL, "expires": LATER},
    "external_weights_urls": {"urls": {"adapter_model.safetensors": URL}, "expires": LATER},
    "list_sessions": {"sessions": [SESSION]},
    "get_session": {"training_run_ids": [RUN], "sampler_ids": [SAMPLER], "display_name": "demo"},
    "search_sessions": {
        "sessions": [
            {
                "session_id": SESSION,
                "created_at": WHEN,
                "owner": "ann",
                "project_id": "default",
                "status": {"type": "active"},
                "checkpoints_count": 1,
            }
        ]
    },
    "assign_session_project": {},
    "session_trace_export": {"status": "ready", "url": URL},
    "get_sampler": {"sampler_id": SAMPLER, "base_model": MODEL},
    "audit_log": {
        "entries": [
            {"timestamp": WHEN, "event": "checkpoint.created", "model_id": RUN, "tinker_path": CHECKPOINT}
        ]
    },
    "billing_usage": {
        "data": [
            {
                "bucket_start": "2026-11-15T06:00:00Z",
                "bucket_end": "2026-11-15T07:00:00Z",
                "base_model": MODEL,
                "user_id": "ann",
                "session_id": SESSION,
                "estimated_cost_usd": 0.0,
                "event_info": {"type": "training", "token_count": 65536},
            }
        ],
        "sessions": {SESSION: {"user_metadata": {"purpose": "demo"}}},
    },
    "checkpoint_storage_usage": {
        "data": [{"checkpoint_count": 1, "size_bytes": 349208640, "size_gigabytes": 0.34920864}]
    },
    **dict.fromkeys(
        (
            "create_model", "unload_model", "forward", "forward_backward", "optim_step", "save_weights",
            "save_weights_for_sampler", "save_weights_external", "load_weights",
        ),
        _TICKET,
    ),
    "create_custom_loss": {"request_id": f"{SESSION}:loss:0"},
}  # fmt: skip

RESULTS: dict[str, Any] = {
    "create_model": {"model_id": RUN, "type": "create_model"},
    "optim_step": {"metrics": {"grad_norm": 0.42}},
    "save_weights": {"path": CHECKPOINT, "type": "save_weights"},
    "save_weights_for_sampler": {"sampling_session_id": SAMPLER, "type": "save_weights_for_sampler"},
    "forward_backward": {
        "loss_fn_output_type": "TorchLossReturn",
        "loss_fn_outputs": [{"logprobs": {"data": [-0.5, -0.25, -1.5], "dtype": "float32", "shape": [3]}}],
        "metrics": {"loss:sum": 1.75},
    },
    "asample": {
        "sequences": [{"stop_reason": "stop", "tokens": [8, 9], "logprobs": [-0.5, -0.125]}],
        "type": "sample",
    },
}
"""What a poll brings for work of these routes, in its JSON form."""
