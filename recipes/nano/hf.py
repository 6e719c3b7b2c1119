"""Write and read a decoder as a Hugging Face Qwen3 folder."""

import json
from pathlib import Path

import torch
from model import Decoder, Shape
from safetensors.torch import load_file, save_file
from tokenizer import CONTROL
from tokenizers import Tokenizer

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
MLP = ("gate_proj", "up_proj", "down_proj")


def name_of(ours: str) -> str:
    """The Hugging Face name of one of our parameters."""
    if ours == "embed.weight":
        return "model.embed_tokens.weight"
    if ours == "norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = ours.split(".")
    inner = f"self_attn.{part}" if part in ATTENTION else f"mlp.{part}" if part in MLP else part
    return f"model.layers.{layer}.{inner}.weight"


def tensors(model: Decoder) -> dict[str, torch.Tensor]:
    """The weights under their Hugging Face names, in bfloat16 on the CPU."""
    return {
        name_of(name): value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
    }


def save_weights(model: Decoder, path: Path) -> None:
    """Only the weights, as safetensors."""
    save_file(tensors(model), str(path), metadata={"format": "pt"})


def save(model: Decoder, tokenizer: Tokenizer, folder: Path) -> None:
    """Weights, config and generation config; the tokenizer files are written by `tokenizer.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_weights(model, folder / "model.safetensors")
    shape = model.shape
    end_of_text, _, end = (tokenizer.token_to_id(t) for t in CONTROL)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": shape.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": end_of_text,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
        "eos_token_id": [end, end_of_text],
        "pad_token_id": end_of_text,
        "max_new_tokens": 256,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load(folder: Path, device: torch.device | str = "cpu") -> Decoder:
    """A decoder from a saved folder, computed in float32."""
    c = json.loads((folder / "config.json").read_text())
    shape = Shape(
        c["vocab_size"],
        c["num_hidden_layers"],
        c["hidden_size"],
        c["num_attention_heads"],
        c["num_key_value_heads"],
        c["head_dim"],
        c["intermediate_size"],
        c["max_position_embeddings"],
        c["rope_theta"],
        c["rms_norm_eps"],
    )
    model = Decoder(shape)
    stored = load_file(str(folder / "model.safetensors"))
    model.load_state_dict({name: stored[name_of(name)].float() for name in model.state_dict()})
    return model.to(device).eval()
