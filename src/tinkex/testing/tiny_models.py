"""Base models small enough to make on the spot, written as Hugging Face folders without torch.

The default is a Qwen3 of 205 thousand random weights with a byte-level tokenizer: everything a real folder
has, and an engine trains on it in milliseconds.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_END, _TURN_END = 256, 258
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Weights = dict[str, npt.NDArray[np.float32]]


def make_tiny_model(
    folder: str | Path,
    *,
    name: str = "qwen3",
    layers: int = 2,
    hidden: int = 64,
    vocab: int = 1024,
    context: int = 8192,
    tied: bool = False,
    seed: int = 0,
) -> Path:
    """Write a random model of a family (qwen3, qwen2 or llama) with its tokenizer; its folder.

    Heads have 16 dimensions, half as many keys as queries; `hidden` is a multiple of 32. The first 256
    tokens are bytes, the next three `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`.
    """
    if name not in _ARCHITECTURES:
        raise ValueError(f"unknown family {name!r}; use one of {', '.join(_ARCHITECTURES)}")
    if hidden % 32 or hidden < 32:
        raise ValueError(f"hidden must be a multiple of 32, got {hidden}")
    if vocab < 256 + len(_SPECIAL):
        raise ValueError(f"vocab must be at least {256 + len(_SPECIAL)}, got {vocab}")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    config = _config(name, layers, hidden, vocab, context, tied)
    _write_json(place / "config.json", config)
    _write_json(place / "generation_config.json", {"eos_token_id": [_TURN_END, _END], "pad_token_id": _END})
    write_safetensors(place / "model.safetensors", _weights(config, np.random.default_rng(seed)))
    _write_json(place / "tokenizer.json", _tokenizer())
    _write_json(
        place / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": context,
            "chat_template": _CHAT_TEMPLATE,
        },
    )
    return place


def write_safetensors(path: Path, tensors: Weights) -> None:
    """Write float32 arrays as a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, array in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [place, place + array.nbytes],
        }
        place += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array, "<f4").data)


def _config(name: str, layers: int, hidden: int, vocab: int, context: int, tied: bool) -> dict[str, Any]:
    return {
        "architectures": [_ARCHITECTURES[name]],
        "model_type": name,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": hidden // 16,
        "num_key_value_heads": hidden // 32,
        "head_dim": 16,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "bos_token_id": None,
        "eos_token_id": _TURN_END,
        "pad_token_id": _END,
        "dtype": "float32",
    }


def _weights(config: dict[str, Any], random: np.random.Generator) -> Weights:
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = 16 * config["num_key_value_heads"]
    found: Weights = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        found[f"{name}.weight"] = random.normal(0.0, 0.02, (rows, columns)).astype(np.float32)

    def ones(name: str, size: int) -> None:
        found[f"{name}.weight"] = np.ones(size, np.float32)

    matrix("model.embed_tokens", vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        here = f"model.layers.{layer}"
        ones(f"{here}.input_layernorm", hidden)
        for part, rows in (("q", hidden), ("k", keys), ("v", keys)):
            matrix(f"{here}.self_attn.{part}_proj", rows, hidden)
            if config["model_type"] == "qwen2":
                found[f"{here}.self_attn.{part}_proj.bias"] = np.zeros(rows, np.float32)
        matrix(f"{here}.self_attn.o_proj", hidden, hidden)
        if config["model_type"] == "qwen3":
            ones(f"{here}.self_attn.q_norm", 16)
            ones(f"{here}.self_attn.k_norm", 16)
        ones(f"{here}.post_attention_layernorm", hidden)
        matrix(f"{here}.mlp.gate_proj", inner, hidden)
        matrix(f"{here}.mlp.up_proj", inner, hidden)
        matrix(f"{here}.mlp.down_proj", hidden, inner)
    ones("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        matrix("lm_head", vocab, hidden)
    return found


def _tokenizer() -> dict[str, Any]:
    special = [
        {
            "id": 256 + number,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, text in enumerate(_SPECIAL)
    ]
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": bytes_alone,
        "post_processor": None,
        "decoder": bytes_alone,
        "model": {"type": "BPE", "vocab": _byte_names(), "merges": []},
    }


def _byte_names() -> dict[str, int]:
    """Bytes as byte-level tokenizers spell them: visible ones as they are, the others from 256 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in visible}
    for byte in range(256):
        if byte not in names:
            names[byte] = chr(256 + len(names) - len(visible))
    return {names[byte]: byte for byte in range(256)}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
