"""Traffic of official SDKs, as recorded on the wire."""

from __future__ import annotations

# Method, path, query, body: SDK 0.36.0.
REQUESTS_0_36: list[tuple[str, str, str]] = [
    ("POST", "/api/v1/client/config", '{"sdk_version":"0.36.0"}'),
    ("POST", "/api/v1/client/dynamic_config", '{"sdk_version":"0.36.0"}'),
    ("POST", "/api/v1/auth/token", "{}"),
    (
        "POST",
        "/api/v1/create_session",
        '{"tags":[],"user_metadata":{"k":"v"},"sdk_version":"0.36.0","type":"create_session"}',
    ),
    ("POST", "/api/v1/session_heartbeat", '{"session_id":"sess-1","type":"session_heartbeat"}'),
    (
        "POST",
        "/api/v1/create_model",
        '{"session_id":"sess-1","model_seq_id":0,"base_model":"Qwen/Qwen3-8B","lora_config":{"rank":32,"train_unembed":true,"train_mlp":true,"train_attn":true},"optimizer_config":{"type":"adamw"},"type":"create_model"}',
    ),
    ("POST", "/api/v1/retrieve_future", '{"request_id":"req-1","allow_metadata_only":true}'),
    (
        "POST",
        "/api/v1/optim_step",
        '{"model_id":"sess-1:train:0","seq_id":4,"type":"optim_step","adam_params":{"learning_rate":0.0001,"beta1":0.9,"beta2":0.95,"eps":1e-12,"weight_decay":0.0,"grad_clip_norm":0.0}}',
    ),
    (
        "POST",
        "/api/v1/optim_step",
        '{"model_id":"sess-1:train:0","seq_id":5,"type":"optim_step","optimizer_params":{"type":"dimuon","learning_rate":0.001,"grad_clip_norm":0.0,"beta1":0.9}}',
    ),
    (
        "POST",
        "/api/v1/save_weights",
        '{"model_id":"sess-1:train:0","path":"ck1","seq_id":6,"overwrite":false,"type":"save_weights"}',
    ),
    (
        "POST",
        "/api/v1/save_weights_for_sampler",
        '{"model_id":"sess-1:train:0","path":"s1","seq_id":7,"ttl_seconds":3600,"type":"save_weights_for_sampler"}',
    ),
    (
        "POST",
        "/api/v1/save_weights_external",
        '{"model_id":"sess-1:train:0","path":"e1","seq_id":8,"type":"save_weights_external"}',
    ),
    (
        "POST",
        "/api/v1/save_weights_for_sampler",
        '{"model_id":"sess-1:train:0","sampling_session_seq_id":0,"seq_id":9,"type":"save_weights_for_sampler"}',
    ),
    ("POST", "/api/v1/get_info", '{"model_id":"sess-1:train:0","type":"get_info"}'),
    (
        "POST",
        "/api/v1/create_sampling_session",
        '{"session_id":"sess-1","sampling_session_seq_id":1,"base_model":"Qwen/Qwen3-8B","type":"create_sampling_session"}',
    ),
    (
        "POST",
        "/api/v1/asample",
        '{"num_samples":2,"prompt":{"chunks":[{"tokens":[5,6,7],"type":"encoded_text"}]},"sampling_params":{"max_tokens":4,"stop":["\\n"],"temperature":0.7,"top_k":-1,"top_p":1.0},"sampling_session_id":"sess-1:sample:0","seq_id":0,"prompt_logprobs":false,"topk_prompt_logprobs":0,"topk_sample_logprobs":0,"prompt_alt_tokens_k":0,"record_stability_info":false,"type":"sample"}',
    ),
    (
        "POST",
        "/api/v1/asample",
        '{"num_samples":1,"prompt":{"chunks":[{"tokens":[1],"type":"encoded_text"},{"data":"iVBORw==","format":"png","expected_tokens":5,"type":"image"}]},"sampling_params":{"max_tokens":1,"temperature":1.0,"top_k":-1,"top_p":1.0},"sampling_session_id":"sess-1:sample:0","seq_id":3,"prompt_logprobs":true,"topk_prompt_logprobs":0,"topk_sample_logprobs":0,"target_prompt_logprobs":{"data":[3,-1],"dtype":"int64","shape":[2,1]},"prompt_alt_tokens_k":1,"prompt_logprobs_last_n":2,"record_stability_info":false,"type":"sample"}',
    ),
    ("POST", "/api/v1/weights_info", '{"tinker_path":"tinker://sess-1:train:0/weights/ck1"}'),
    (
        "POST",
        "/api/v1/load_weights",
        '{"model_id":"sess-1:train:1","seq_id":1,"path":"tinker://sess-1:train:0/weights/ck1","optimizer":false,"type":"load_weights"}',
    ),
    (
        "POST",
        "/api/v1/load_weights",
        '{"session_id":"sess-1","model_seq_id":1,"path":"tinker://a:train:0/weights/ck","optimizer":true,"type":"load_weights"}',
    ),
    (
        "POST",
        "/api/v1/join_sampling_session",
        '{"sampling_session_id":"sess-1:sample:0","type":"join_sampling_session"}',
    ),
    (
        "POST",
        "/api/v1/retrieve_futures",
        '{"target":{"type":"sampling_session","sampling_session_id":"sess-1:sample:0","cloned_sampler_id":0},"prev_cursor":1,"retrieved_request_ids":["req-6"]}',
    ),
    (
        "POST",
        "/api/v1/copy_weights",
        '{"destination_project_id":"proj1","source_path":"tinker://sess-1:train:0/weights/ck1"}',
    ),
    ("POST", "/api/v1/sessions/search", '{"user_metadata":{},"owner":{"type":"own"},"limit":50}'),
    ("POST", "/api/v1/sessions/sess-1/finish", '{"reason":{"type":"success"},"detail":null}'),
    (
        "PUT",
        "/api/v1/training_runs/sess-1:train:0/checkpoints/weights/ck1/ttl",
        '{"ttl_seconds":7200}',
    ),
    (
        "PUT",
        "/api/v1/training_runs/sess-1:train:0/checkpoints/weights/ck1/ttl",
        '{"ttl_seconds":null}',
    ),
    (
        "POST",
        "/api/v1/telemetry",
        '{"events":[{"event":"SESSION_START","event_id":"35072e5c-c44d-473c-b41a-508b7f0e8bea","event_session_index":0,"severity":"INFO","timestamp":"2026-11-15T06:36:34.116884Z"}],"platform":"Linux","sdk_version":"0.36.0","session_id":"sess-1","process_uuid":"191ad82b-fab3-45de-99f7-07ab7eaea007"}',
    ),
]

QUERIES_0_36 = [
    ("/api/v1/training_runs", "limit=20&offset=0&access_scope=owned"),
    (
        "/api/v1/billing/usage/events",
        "starting_on=2026-07-13T00%3A00%3A00Z&ending_before=2026-07-14T00%3A00%3A00Z",
    ),
]

# A body of SDK 0.3.0, and the same with everything filled in that it leaves unsaid.
REQUESTS_0_3: list[tuple[str, str, str]] = [
    (
        "/api/v1/create_session",
        '{"tags":[],"user_metadata":{"k":"v"},"sdk_version":"0.3.0"}',
        '{"tags":[],"user_metadata":{"k":"v"},"sdk_version":"0.3.0","type":"create_session"}',
    ),
    (
        "/api/v1/create_model",
        '{"session_id":"sess-1","model_seq_id":0,"base_model":"Qwen/Qwen3-8B","user_metadata":null,"lora_config":{"rank":32,"seed":null,"train_unembed":true,"train_mlp":true,"train_attn":true}}',
        '{"session_id":"sess-1","model_seq_id":0,"base_model":"Qwen/Qwen3-8B","lora_config":{"rank":32,"train_unembed":true,"train_mlp":true,"train_attn":true},"optimizer_config":{"type":"adamw"},"type":"create_model"}',
    ),
    (
        "/api/v1/retrieve_future",
        '{"request_id":"req-1"}',
        '{"request_id":"req-1","allow_metadata_only":false}',
    ),
    (
        "/api/v1/forward_backward",
        '{"forward_backward_input":{"data":[{"loss_fn_inputs":{"target_tokens":{"data":[2,3,4],"dtype":"int64","shape":[3]},"weights":{"data":[0.0,1.0,1.0],"dtype":"float32","shape":[3]}},"model_input":{"chunks":[{"tokens":[1,2,3]}]}}],"loss_fn":"ppo","loss_fn_config":{"clip_low_threshold":0.8}},"model_id":"sess-1:train:0","seq_id":3}',
        '{"forward_backward_input":{"data":[{"loss_fn_inputs":{"target_tokens":{"data":[2,3,4],"dtype":"int64","shape":[3]},"weights":{"data":[0.0,1.0,1.0],"dtype":"float32","shape":[3]}},"model_input":{"chunks":[{"tokens":[1,2,3],"type":"encoded_text"}]}}],"loss_fn":"ppo","loss_fn_config":{"clip_low_threshold":0.8}},"model_id":"sess-1:train:0","seq_id":3}',
    ),
    (
        "/api/v1/forward",
        '{"forward_input":{"data":[{"loss_fn_inputs":{"target_tokens":{"data":[2,3,4],"dtype":"int64","shape":[3]},"weights":{"data":[0.0,1.0,1.0],"dtype":"float32","shape":[3]}},"model_input":{"chunks":[{"tokens":[1,2,3]}]}}],"loss_fn":"cross_entropy","loss_fn_config":null},"model_id":"sess-1:train:0","seq_id":2}',
        '{"forward_input":{"data":[{"loss_fn_inputs":{"target_tokens":{"data":[2,3,4],"dtype":"int64","shape":[3]},"weights":{"data":[0.0,1.0,1.0],"dtype":"float32","shape":[3]}},"model_input":{"chunks":[{"tokens":[1,2,3],"type":"encoded_text"}]}}],"loss_fn":"cross_entropy"},"model_id":"sess-1:train:0","seq_id":2}',
    ),
    (
        "/api/v1/optim_step",
        '{"adam_params":{"learning_rate":0.0001},"model_id":"sess-1:train:0","seq_id":4}',
        '{"adam_params":{"learning_rate":0.0001,"beta1":0.9,"beta2":0.95,"eps":1e-12,"weight_decay":0.0,"grad_clip_norm":0.0},"model_id":"sess-1:train:0","seq_id":4,"type":"optim_step"}',
    ),
    (
        "/api/v1/optim_step",
        '{"adam_params":{},"model_id":"sess-1:train:0","seq_id":5}',
        '{"adam_params":{"learning_rate":0.0001,"beta1":0.9,"beta2":0.95,"eps":1e-12,"weight_decay":0.0,"grad_clip_norm":0.0},"model_id":"sess-1:train:0","seq_id":5,"type":"optim_step"}',
    ),
    (
        "/api/v1/save_weights",
        '{"model_id":"sess-1:train:0","path":"ck1","seq_id":6}',
        '{"model_id":"sess-1:train:0","path":"ck1","seq_id":6,"overwrite":false,"type":"save_weights"}',
    ),
    (
        "/api/v1/save_weights_for_sampler",
        '{"model_id":"sess-1:train:0","sampling_session_seq_id":0,"seq_id":8}',
        '{"model_id":"sess-1:train:0","sampling_session_seq_id":0,"seq_id":8,"type":"save_weights_for_sampler"}',
    ),
    (
        "/api/v1/asample",
        '{"num_samples":1,"prompt":{"chunks":[{"tokens":[5,6,7]}]},"sampling_params":{"max_tokens":1},"sampling_session_id":"sess-1:sample:0","seq_id":1,"prompt_logprobs":true,"topk_prompt_logprobs":0}',
        '{"num_samples":1,"prompt":{"chunks":[{"tokens":[5,6,7],"type":"encoded_text"}]},"sampling_params":{"max_tokens":1,"temperature":1.0,"top_k":-1,"top_p":1.0},"sampling_session_id":"sess-1:sample:0","seq_id":1,"prompt_logprobs":true,"topk_prompt_logprobs":0,"topk_sample_logprobs":0,"prompt_alt_tokens_k":0,"type":"sample"}',
    ),
    (
        "/api/v1/create_sampling_session",
        '{"session_id":"sess-1","sampling_session_seq_id":1,"base_model":"Qwen/Qwen3-8B","model_path":null}',
        '{"session_id":"sess-1","sampling_session_seq_id":1,"base_model":"Qwen/Qwen3-8B","type":"create_sampling_session"}',
    ),
    (
        "/api/v1/load_weights",
        '{"model_id":"sess-1:train:1","path":"tinker://sess-1:train:0/weights/ck1","seq_id":1}',
        '{"model_id":"sess-1:train:1","path":"tinker://sess-1:train:0/weights/ck1","seq_id":1,"optimizer":true,"type":"load_weights"}',
    ),
    (
        "/api/v1/telemetry",
        '{"events":[{"event":"SESSION_START","event_id":"ad49d07d-1b7d-4f25-8195-8dfd7e279199","event_session_index":0,"severity":"INFO","timestamp":"2026-11-15T06:37:04.289676Z"}],"platform":"Linux","sdk_version":"0.3.0","session_id":"sess-1"}',
        '{"events":[{"event":"SESSION_START","event_id":"ad49d07d-1b7d-4f25-8195-8dfd7e279199","event_session_index":0,"severity":"INFO","timestamp":"2026-11-15T06:37:04.289676Z"}],"platform":"Linux","sdk_version":"0.3.0","session_id":"sess-1","process_uuid":""}',
    ),
]

# ppo, number 3, settings {clip_low_threshold: 0.8, tag: "x"}; tokens 1 2 3, targets 2 3 4, weights 0 1 1.
FORWARD_BACKWARD = (
    "Cg5zZXNzLTE6dHJhaW46MBADGmQKEAoOCgwBAAAAAgAAAAMAAAASHgoHd2VpZ2h0cxITCgwAAAAAAACAPwAAgD8YASIBAxIw"
    "Cg10YXJnZXRfdG9rZW5zEh8KGAIAAAAAAAAAAwAAAAAAAAAEAAAAAAAAABgCIgEDIgNwcG8qHQoSY2xpcF9sb3dfdGhyZXNo"
    "b2xkEZqZmZmZmek/Oh8KEmNsaXBfbG93X3RocmVzaG9sZBIJCZqZmZmZmek/OgoKA3RhZxIDEgF4"
)
# Two examples of three logprobs of -0.5; loss:sum 2.5, tok:mean 2.
FORWARD_BACKWARD_OUTPUT = (
    "Cg9Ub3JjaExvc3NSZXR1cm4SVwoPVG9yY2hMb3NzUmV0dXJuEkIKCGxvZ3Byb2JzEjYKGAAAAL8AAAC/AAAAvwAAAL8AAAC/"
    "AAAAvxIYAAAAAAAAAAAMAAAAAAAAABgAAAAAAAAAGAEYAhoTCghsb3NzOnN1bREAAAAAAAAEQBoTCgh0b2s6bWVhbhEAAAAA"
    "AAAAQA=="
)
# Tokens 0 1 2, stopped; prompt logprobs NaN -1 -1.
SAMPLE_RESPONSE = "ChwSDAAAAAABAAAAAgAAABoMzczMvc3MTL6amZm+EgwAAMB/AACAvwAAgL8="

# The headers of one poll.
HEADERS = {
    "accept-encoding": "gzip, deflate, zstd",
    "accept": "application/json",
    "content-type": "application/json",
    "user-agent": "AsyncTinker/Python 0.36.0",
    "x-tinker-request-iteration": "0",
    "x-tinker-request-type": "CreateModel",
    "x-tinker-create-promise-roundtrip-time": "0.007905006408691406",
    "x-idempotency-key": "stainless-python-retry-7a8b6108-1556-4d46-88bf-0a07233a1da9",
    "x-api-key": "tml-test-key",
}
