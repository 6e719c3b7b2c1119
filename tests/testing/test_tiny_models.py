"""Tiny models made without torch: what their folders hold."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from tinkex.engine.model_folder import stored_parameters
from tinkex.testing import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def test_the_default_is_the_model_of_the_benchmarks(folder):
    config = json.loads((folder / "config.json").read_text())
    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 1024,
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
    }
    assert config | shape == config
    weights = load_file(folder / "model.safetensors")
    assert sum(array.size for array in weights.values()) == stored_parameters(folder) == 205_184
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (32, 64)
    assert weights["lm_head.weight"].std() == pytest.approx(0.02, rel=0.05)


def test_a_seed_makes_the_same_model(folder, tmp_path):
    again = make_tiny_model(tmp_path / "again")
    other = make_tiny_model(tmp_path / "other", seed=1, tied=True)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in again.iterdir()} == files
    first, second = (load_file(place / "model.safetensors") for place in (folder, other))
    assert not np.array_equal(first["model.norm.weight"] * 2, second["model.norm.weight"])
    assert not np.array_equal(first["model.embed_tokens.weight"], second["model.embed_tokens.weight"])
    assert "lm_head.weight" not in second


@pytest.mark.parametrize("text", ["hello\n\tthere", "zwölf 🙂", bytes(range(256)).decode("latin-1")])
def test_every_byte_is_a_token(folder, text):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    marked = tokenizer.encode(f"<|im_start|>{text}<|im_end|><|endoftext|>").ids
    assert (marked[0], marked[-2:]) == (257, [258, 256])


def test_a_chat_is_written_with_turns(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (258, 256)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": "gpt2"}, "unknown family"),
        ({"hidden": 40}, "multiple of 32"),
        ({"vocab": 200}, "at least 259"),
    ],
)
def test_shapes_that_cannot_be_are_refused(tmp_path, wrong, text):
    with pytest.raises(ValueError, match=text):
        make_tiny_model(tmp_path / "x", **wrong)
    assert not (tmp_path / "x").exists()
