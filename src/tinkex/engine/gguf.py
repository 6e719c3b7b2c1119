"""A GGUF file of a Llama-shaped model, dequantised once into a Hugging Face folder.

Weights become safetensors, q and k in transformers' row order again; the tokenizer and its special tokens
are taken from the file's own metadata. Needs the packages gguf and tokenizers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .faults import UserFault
from .fresh_folder import fresh_folder
from .gguf_header import check_lengths

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
_CONTROL = 3
_CUTS = ("default", "gpt-2", "smollm")
"""How text is cut before merges, by the file's own name for it; another cut gives other tokens."""


def convert_gguf(file: str | Path, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Read a GGUF file and write the folder `BaseModel.load` and tokenizers read."""
    try:
        import gguf
    except ImportError:
        raise UserFault("reading GGUF files needs the package gguf: pip install gguf") from None
    try:
        _convert(gguf, Path(file), Path(folder), dtype)
    except (UserFault, OSError):
        raise
    except Exception as problem:  # the file is foreign: its readers raise errors of every kind
        raise UserFault(f"{Path(file).name} is damaged, or no GGUF file: {problem!r}") from None


def _convert(gguf: Any, file: Path, folder: Path, dtype: torch.dtype) -> None:
    check_lengths(file)
    reader = gguf.GGUFReader(file)
    facts = {name: entry.contents() for name, entry in reader.fields.items()}
    if facts.get("general.architecture") != "llama":
        raise UserFault(
            f"GGUF architecture {facts.get('general.architecture')!r} is not supported; llama is"
        )
    if facts.get("tokenizer.ggml.model") != "gpt2":
        raise UserFault(f"GGUF tokenizer {facts.get('tokenizer.ggml.model')!r} is not supported; gpt2 is")
    if (cut := facts.get("tokenizer.ggml.pre", "default")) not in _CUTS:
        raise UserFault(f"GGUF pre-tokenizer {cut!r} is not supported; {', '.join(_CUTS)} are")
    if (scaling := facts.get("llama.rope.scaling.type", "none")) != "none":
        raise UserFault(f"GGUF rope scaling {scaling!r} is not supported")
    heads = int(facts["llama.attention.head_count"])
    kv_heads = int(facts.get("llama.attention.head_count_kv", heads))
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        name = _name(tensor.name)
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if name.endswith("q_proj.weight"):
            values = _halves(values, heads)
        elif name.endswith("k_proj.weight"):
            values = _halves(values, kv_heads)
        tensors[name] = values.to(dtype).contiguous()
    config = _config(facts, heads, kv_heads, tied="lm_head.weight" not in tensors, dtype=dtype)
    with fresh_folder(folder) as place:
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        _write_json(place / "config.json", config)
        ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        _write_json(place / "generation_config.json", ends)
        _write_tokenizer(place, facts)


def _name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    block, number, rest = [*name.split(".", 2), "", ""][:3]
    if block == "blk" and rest in _LAYER:
        return f"model.layers.{number}.{_LAYER[rest]}"
    raise UserFault(f"GGUF tensor {name!r} is not known")


def _halves(weight_oi: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows that lie as rotary pairs (0, 1), (2, 3)… in the order first halves, second halves."""
    pairs = weight_oi.view(heads, -1, 2, weight_oi.shape[1])
    return pairs.transpose(1, 2).reshape(weight_oi.shape)


def _config(
    facts: dict[str, Any], heads: int, kv_heads: int, *, tied: bool, dtype: torch.dtype
) -> dict[str, Any]:
    hidden = int(facts["llama.embedding_length"])
    theta = float(facts.get("llama.rope.freq_base", 10000.0))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": int(facts["llama.feed_forward_length"]),
        "num_hidden_layers": int(facts["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": int(facts.get("llama.rope.dimension_count", hidden // heads)),
        "max_position_embeddings": int(facts["llama.context_length"]),
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.3g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": facts.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": facts.get("tokenizer.ggml.padding_token_id"),
    }


def _write_tokenizer(place: Path, facts: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    if len(set(tokens)) < len(tokens):
        raise UserFault("its tokenizer has the same token twice")
    merges = [tuple(pair.split(" ", 1)) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    single_digits = facts.get("tokenizer.ggml.pre") == "smollm"
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if single_digits
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts.get("tokenizer.ggml.token_type", [])
    control = [x for x, kind in zip(tokens, kinds, strict=False) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(x, special=True, normalized=False) for x in control])
    tokenizer.save(str(place / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(facts["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(facts.get("tokenizer.ggml.add_bos_token", False)),
    }
    for name, key in _SPECIAL.items():
        index = facts.get(f"tokenizer.ggml.{key}")
        if index is not None:
            config[name] = tokens[index]
    if template := facts.get("tokenizer.chat_template"):
        config["chat_template"] = template
    _write_json(place / "tokenizer_config.json", config)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
