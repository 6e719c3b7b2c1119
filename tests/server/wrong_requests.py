"""Requests that are wrong, each with its route, its body and what the refusal must say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinker.proto import tinker_public_pb2 as official_pb

from tinkex.types import TensorData

from .client import TEXT, Client, datum
from .machine import CONTEXT, VOCAB

Body = Callable[[str, str, str], Any]
"""From (session, model, sampling session) to a body."""

IMAGE = {"data": "iVBORw0KGgo=", "format": "png", "expected_tokens": 4, "type": "image"}
NEAR = {"learning_rate": 1e-4}


def floats(*values: float) -> TensorData:
    return TensorData(list(values), "float32", [len(values)])


# ---- models and sessions

MODELS: dict[str, tuple[str, Body, list[str]]] = {
    "a base model that is not served": (
        "create_model",
        lambda s, m, p: {"session_id": s, "model_seq_id": 1, "base_model": "Qwen/Qwen3-8B"},
        ["'Qwen/Qwen3-8B'", "'tiny'"],
    ),
    "rank 0": (
        "create_model",
        lambda s, m, p: {
            "session_id": s,
            "model_seq_id": 1,
            "base_model": "tiny",
            "lora_config": {"rank": 0},
        },
        ["rank: 0", "1 and 512"],
    ),
    "rank 10,000": (
        "create_model",
        lambda s, m, p: {
            "session_id": s,
            "model_seq_id": 1,
            "base_model": "tiny",
            "lora_config": {"rank": 10_000},
        },
        ["rank: 10000", "1 and 512"],
    ),
    "nothing to train": (
        "create_model",
        lambda s, m, p: {
            "session_id": s,
            "model_seq_id": 1,
            "base_model": "tiny",
            "lora_config": {"rank": 8, "train_attn": False, "train_mlp": False, "train_unembed": False},
        },
        ["train_attn", "nothing to train"],
    ),
    "an optimizer that is not offered": (
        "create_model",
        lambda s, m, p: {
            "session_id": s,
            "model_seq_id": 1,
            "base_model": "tiny",
            "optimizer_config": {"type": "dimuon", "version": 1},
        },
        ["'dimuon'", "adamw"],
    ),
    "a negative model number": (
        "create_model",
        lambda s, m, p: {"session_id": s, "model_seq_id": -1, "base_model": "tiny"},
        ["model_seq_id", "-1"],
    ),
    "a huge model number": (
        "create_model",
        lambda s, m, p: {"session_id": s, "model_seq_id": 10**30, "base_model": "tiny"},
        ["model_seq_id"],
    ),
    "a sampling session on neither a model nor a path": (
        "create_sampling_session",
        lambda s, m, p: {"session_id": s, "sampling_session_seq_id": 1},
        ["base_model", "model_path"],
    ),
    "a sampling session on a model that is not served": (
        "create_sampling_session",
        lambda s, m, p: {"session_id": s, "sampling_session_seq_id": 1, "base_model": "gpt"},
        ["'gpt'", "'tiny'"],
    ),
    "a sampling session on a path that is none": (
        "create_sampling_session",
        lambda s, m, p: {"session_id": s, "sampling_session_seq_id": 1, "model_path": "a/b"},
        ["model_path", "tinker://"],
    ),
    "a negative sampling session number": (
        "create_sampling_session",
        lambda s, m, p: {"session_id": s, "sampling_session_seq_id": -4, "base_model": "tiny"},
        ["sampling_session_seq_id", "-4"],
    ),
    "a custom loss without inputs": (
        "create_custom_loss",
        lambda s, m, p: {
            "session_id": s,
            "custom_loss_seq_id": 0,
            "name": "x",
            "inputs": [],
            "graph": {"format": 1, "nodes": []},
        },
        ["inputs", "16"],
    ),
    "a custom loss of two megabytes": (
        "create_custom_loss",
        lambda s, m, p: {
            "session_id": s,
            "custom_loss_seq_id": 0,
            "name": "x" * (2 << 20),
            "inputs": [{"name": "logprobs", "rank": 1}],
            "graph": {"format": 1, "nodes": []},
        },
        ["1048576"],
    ),
    "a huge custom loss number": (
        "create_custom_loss",
        lambda s, m, p: {
            "session_id": s,
            "custom_loss_seq_id": 2**70,
            "name": "x",
            "inputs": [{"name": "logprobs", "rank": 1}],
            "graph": {"format": 1, "nodes": []},
        },
        ["custom_loss_seq_id"],
    ),
}


def passing(*data: Any, loss: str = "cross_entropy", config: Any = None) -> Body:
    return lambda s, m, p: Client.train_body(m, 1, *data, loss=loss, config=config)[0]


def as_json(datum: dict[str, Any], loss: str = "cross_entropy", config: Any = None) -> Body:
    given = {"data": [datum], "loss_fn": loss, "loss_fn_config": config}
    return lambda s, m, p: {"forward_backward_input": given, "model_id": m, "seq_id": 1}


def plain(tokens: list[int], **inputs: Any) -> dict[str, Any]:
    targets = {"data": tokens, "dtype": "int64", "shape": [len(tokens)]}
    return {
        "model_input": {"chunks": [{"tokens": tokens}]},
        "loss_fn_inputs": {"target_tokens": targets, **inputs},
    }


def official(change: Callable[[official_pb.ForwardBackwardRequest], None]) -> Body:
    """A good request in protobuf, made bad."""

    def body(s: str, m: str, p: str) -> bytes:
        message = official_pb.ForwardBackwardRequest.FromString(Client.train_body(m, 1)[0])
        change(message)
        return message.SerializeToString()

    return body


def _unknown_loss(message: official_pb.ForwardBackwardRequest) -> None:
    message.loss_fn = "hinge"


def _image(message: official_pb.ForwardBackwardRequest) -> None:
    message.data[0].model_input.add().image.CopyFrom(
        official_pb.ImageChunk(data=b"x", format="png", expected_tokens=3)
    )


def _short_tensor(message: official_pb.ForwardBackwardRequest) -> None:
    message.data[0].loss_fn_inputs["weights"].dense = b"\x00" * 5


def _no_data(message: official_pb.ForwardBackwardRequest) -> None:
    del message.data[:]


THREE = {"data": [1, 2, 3], "dtype": "int64", "shape": [3]}
PASSES: dict[str, tuple[str, Body, list[str]]] = {
    "an unknown loss": ("forward_backward", official(_unknown_loss), ["'hinge'", "cross_entropy", "cispo"]),
    "an unknown loss in JSON": ("forward_backward", as_json(plain([1, 2]), "hinge"), ["'hinge'", "ppo"]),
    "a loss without a public definition": (
        "forward_backward",
        passing(loss="stable_reinforce"),
        ["'stable_reinforce'", "ppo"],
    ),
    "a setting the loss does not have": (
        "forward_backward",
        passing(config={"beta": 1.0}),
        ["'beta'", "none"],
    ),
    "a setting that is no number": (
        "forward_backward",
        as_json(plain([1, 2]), "ppo", {"clip_low_threshold": "x"}),
        ["clip_low_threshold", "'x'"],
    ),
    "a custom loss nobody made": (
        "forward_backward",
        passing(loss="custom", config={"loss_id": "nope"}),
        ["'nope'"],
    ),
    "an image": ("forward_backward", official(_image), ["data[0]", "chunks[1]", "image", "text"]),
    "an image in JSON": (
        "forward_backward",
        as_json({**plain([1]), "model_input": {"chunks": [{"tokens": [1]}, IMAGE]}}),
        ["chunks[1]", "image"],
    ),
    "an image as SDK 0.3 wrote it": (
        "forward_backward",
        as_json(
            {
                **plain([1]),
                "model_input": {
                    "chunks": [{"data": "iVBORw==", "format": "png", "height": 2, "width": 2, "tokens": 4}]
                },
            }
        ),
        ["chunks[0]", "image"],
    ),
    "no data": ("forward_backward", official(_no_data), ["0 examples", "4096"]),
    "no tokens": ("forward_backward", as_json(plain([])), ["data[0]", "no tokens"]),
    "too many tokens": (
        "forward_backward",
        passing(datum(), datum(range(CONTEXT + 1))),
        ["data[1]", f"{CONTEXT + 1} tokens", f"context {CONTEXT}"],
    ),
    "no targets": (
        "forward_backward",
        as_json(
            {"model_input": TEXT, "loss_fn_inputs": {"weights": {"data": [1.0] * 3, "dtype": "float32"}}}
        ),
        ["'target_tokens'", "'weights'"],
    ),
    "no advantages": (
        "forward_backward",
        passing(datum(logprobs=floats(1, 1, 1)), loss="ppo"),
        ["'advantages'", "data[0]"],
    ),
    "no mask": (
        "forward_backward",
        passing(datum(logprobs=floats(1, 1, 1), advantages=floats(1, 1, 1)), loss="gspo"),
        ["'sequence_ratio_mask'"],
    ),
    "data made for another loss": (
        "forward_backward",
        as_json(plain([1, 2], advantages={"data": [1.0, 1.0], "dtype": "float32"})),
        ["'advantages'", "importance_sampling"],
    ),
    "weights of another length": (
        "forward_backward",
        passing(datum(weights=floats(1, 1))),
        ["'weights'", "2 rows", "3 input tokens"],
    ),
    "targets of another length": (
        "forward_backward",
        as_json(
            {"model_input": {"chunks": [{"tokens": [1, 2]}]}, "loss_fn_inputs": {"target_tokens": THREE}}
        ),
        ["'target_tokens'", "3 rows", "2 input tokens"],
    ),
    "weights that are not numbers": (
        "forward_backward",
        passing(datum(weights=floats(1, float("nan"), 1))),
        ["'weights'", "finite"],
    ),
    "infinite advantages": (
        "forward_backward",
        passing(datum(logprobs=floats(1, 1, 1), advantages=floats(1, float("-inf"), 1)), loss="ppo"),
        ["'advantages'", "finite"],
    ),
    "NaN as text": (
        "forward_backward",
        as_json(plain([1, 2], weights={"data": ["NaN", 1.0], "dtype": "float32"})),
        ["weights"],
    ),
    "a token beyond the vocabulary": (
        "forward_backward",
        passing(datum([1, VOCAB, 2])),
        [str(VOCAB), f"0 to {VOCAB - 1}"],
    ),
    "a negative token": ("forward_backward", as_json(plain([1, -7])), ["-7", f"0 to {VOCAB - 1}"]),
    "targets beyond the vocabulary": (
        "forward_backward",
        passing(datum(target_tokens=TensorData([1, 2, 5000], "int64", [3]))),
        ["5000", "target_tokens"],
    ),
    "targets that are no ids": (
        "forward_backward",
        passing(datum(target_tokens=floats(1.5, 2, 3))),
        ["target_tokens", "int64"],
    ),
    "a tensor whose bytes do not fit its shape": (
        "forward_backward",
        official(_short_tensor),
        ["weights"],
    ),
    "a tensor whose data do not fit its shape": (
        "forward_backward",
        as_json(plain([1, 2], weights={"data": [1.0, 1.0], "dtype": "float32", "shape": [3]})),
        ["weights"],
    ),
    "a dtype there is not": (
        "forward_backward",
        as_json(plain([1, 2], weights={"data": [1, 1], "dtype": "float8"})),
        ["dtype"],
    ),
    "an old forward without data": (
        "forward",
        lambda s, m, p: {
            "forward_input": {"data": [], "loss_fn": "cross_entropy"},
            "model_id": m,
            "seq_id": 1,
        },
        ["0 examples"],
    ),
}


def step(**params: Any) -> Body:
    return lambda s, m, p: {"model_id": m, "seq_id": 1, "adam_params": {**NEAR, **params}}


OPERATIONS: dict[str, tuple[str, Body, list[str]]] = {
    "a negative learning rate": ("optim_step", step(learning_rate=-1), ["learning_rate", "-1"]),
    "beta 1": ("optim_step", step(beta1=1.0), ["beta1", "1.0"]),
    "a learning rate that is no number": ("optim_step", step(learning_rate="NaN"), ["learning_rate"]),
    "an infinite clip": ("optim_step", step(grad_clip_norm="Infinity"), ["grad_clip_norm"]),
    "an optimizer that is not offered": (
        "optim_step",
        lambda s, m, p: {
            "model_id": m,
            "seq_id": 1,
            "optimizer_params": {"type": "dimuon", "learning_rate": 0.1},
        },
        ["'dimuon'", "adamw"],
    ),
    "a negative number": (
        "optim_step",
        lambda s, m, p: {"model_id": m, "seq_id": -1, "adam_params": {}},
        ["seq_id", "-1"],
    ),
    "a number that is a text": (
        "optim_step",
        lambda s, m, p: {"model_id": m, "seq_id": "one", "adam_params": {}},
        ["seq_id"],
    ),
    "a name with slashes": (
        "save_weights",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": "a/../../b"},
        ["'a/../../b'", "no slash"],
    ),
    "a name that is a path": (
        "save_weights_for_sampler",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": f"tinker://{m}/sampler_weights/a"},
        ["no slash"],
    ),
    "a name of dots": (
        "save_weights_external",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": ".."},
        ["'..'"],
    ),
    "an empty name": (
        "save_weights_external",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": ""},
        ["name"],
    ),
    "a name of 256 letters": (
        "save_weights",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": "x" * 256},
        ["1 to 255"],
    ),
    "neither a name nor a session": (
        "save_weights_for_sampler",
        lambda s, m, p: {"model_id": m, "seq_id": 1},
        ["sampling_session_seq_id"],
    ),
    "a short life": (
        "save_weights",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": "a", "ttl_seconds": 5},
        ["ttl_seconds: 5", "60"],
    ),
    "encrypted exports": (
        "save_weights_external",
        lambda s, m, p: {"model_id": m, "seq_id": 1, "path": "a", "age_encryption_recipients": ["age1x"]},
        ["age_encryption_recipients"],
    ),
    "a checkpoint that is not there": (
        "load_weights",
        lambda s, m, p: {
            "model_id": m,
            "seq_id": 1,
            "path": f"tinker://{m}/weights/none",
            "optimizer": True,
        },
        ["none", "not found"],
    ),
    "a path of too many parts": (
        "load_weights",
        lambda s, m, p: {
            "model_id": m,
            "seq_id": 1,
            "path": f"tinker://{m}/weights/a/b",
            "optimizer": True,
        },
        ["path"],
    ),
    "loading into nothing": (
        "load_weights",
        lambda s, m, p: {"path": f"tinker://{m}/weights/a", "optimizer": True},
        ["model_id", "session_id"],
    ),
}


def sampled(**more: Any) -> Body:
    return lambda s, m, p: Client.sample_body(p, 0, **more)


SAMPLES: dict[str, tuple[str, Body, list[str]]] = {
    "a prompt beyond the context": (
        "asample",
        sampled(prompt={"chunks": [{"tokens": [1] * 500}]}, params={"max_tokens": 200}),
        ["prompt 500", "max_tokens 200", f"context {CONTEXT}"],
    ),
    "a prompt without tokens": ("asample", sampled(prompt={"chunks": []}), ["prompt", "no tokens"]),
    "a prompt with an image": ("asample", sampled(prompt={"chunks": [IMAGE]}), ["image", "text"]),
    "a prompt with audio": (
        "asample",
        sampled(prompt={"chunks": [{"dmel": "AQID", "type": "dmel"}]}),
        ["chunks[0]", "dmel"],
    ),
    "a prompt beyond the vocabulary": (
        "asample",
        sampled(prompt={"chunks": [{"tokens": [VOCAB]}]}),
        [str(VOCAB), f"0 to {VOCAB - 1}"],
    ),
    "a token of 80 bits": ("asample", sampled(prompt={"chunks": [{"tokens": [2**80]}]}), ["tokens"]),
    "no samples": ("asample", sampled(num_samples=0), ["num_samples: 0", "1 and 1024"]),
    "very many samples": ("asample", sampled(num_samples=10**6), ["num_samples: 1000000", "1024"]),
    "fewer than no tokens": ("asample", sampled(params={"max_tokens": -1}), ["max_tokens", "-1"]),
    "a negative temperature": ("asample", sampled(params={"temperature": -0.1}), ["temperature", "-0.1"]),
    "a temperature that is no number": ("asample", sampled(params={"temperature": "NaN"}), ["temperature"]),
    "top_p 0": ("asample", sampled(params={"top_p": 0}), ["top_p"]),
    "top_p 2": ("asample", sampled(params={"top_p": 2.0}), ["top_p", "2.0"]),
    "top_k -2": ("asample", sampled(params={"top_k": -2}), ["top_k", "-2"]),
    "an empty stop text": ("asample", sampled(params={"stop": [""]}), ["stop", "0 characters"]),
    "a stop token beyond the vocabulary": ("asample", sampled(params={"stop": [99999]}), ["99999"]),
    "stops of both kinds": ("asample", sampled(params={"stop": ["a", 1]}), ["stop"]),
    "very many stops": ("asample", sampled(params={"stop": ["a"] * 65}), ["65", "64"]),
    "many top logprobs": ("asample", sampled(topk_prompt_logprobs=21), ["topk_prompt_logprobs: 21", "20"]),
    "many top sample logprobs": ("asample", sampled(topk_sample_logprobs=-1), ["topk_sample_logprobs: -1"]),
    "many alternative tokens": ("asample", sampled(prompt_alt_tokens_k=100), ["prompt_alt_tokens_k: 100"]),
    "more last logprobs than the prompt has": (
        "asample",
        sampled(prompt_logprobs_last_n=3),
        ["prompt_logprobs_last_n: 3", "1 and 2"],
    ),
    "targets of another shape": (
        "asample",
        sampled(target_prompt_logprobs={"data": [1, 2, 3], "dtype": "int64", "shape": [3, 1]}),
        ["[2, K]", "[3, 1]"],
    ),
    "targets beyond the vocabulary": (
        "asample",
        sampled(target_prompt_logprobs={"data": [1, 5000], "dtype": "int64", "shape": [2, 1]}),
        ["-1 to"],
    ),
    "a negative sample number": (
        "asample",
        lambda s, m, p: Client.sample_body(p, -1),
        ["seq_id: -1"],
    ),
    "a sample number of 70 bits": ("asample", lambda s, m, p: Client.sample_body(p, 2**70), ["seq_id"]),
    "a sampling session that is none": ("asample", lambda s, m, p: Client.sample_body("x", 0), ["'x'"]),
}
ALL = {**MODELS, **PASSES, **{f"op: {k}": v for k, v in OPERATIONS.items()}, **SAMPLES}
