"""A merged folder is a plain model with the adapter's logits; a GGUF file becomes the model it holds."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from tinkex.engine.base_model import BaseModel
from tinkex.engine.faults import UserFault
from tinkex.engine.merge import merge

from .test_forward_reference import logits_of
from .training_models import (
    ALL_FAMILIES,
    assert_close,
    engine_model,
    filled_adapter,
    make_data,
    plain_model,
)

TOKENS = make_data([13], seed=6)[0].tokens


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_the_merged_folder_is_the_adapted_model(tmp_path, family):
    plain = plain_model(family)
    plain.save_pretrained(tmp_path / "base", max_shard_size="30KB")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    base = engine_model(plain)
    adapter = filled_adapter(base, 4)
    assert merge(tmp_path / "base", adapter, tmp_path / "merged") > 0
    assert (tmp_path / "merged" / "tokenizer.json").read_text() == "{}"
    merged = AutoModelForCausalLM.from_pretrained(
        tmp_path / "merged", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    assert not merged.config.tie_word_embeddings
    with torch.no_grad():
        found = merged(torch.as_tensor(TOKENS)[None]).logits[0]
    assert_close(found, logits_of(base, adapter, TOKENS), 2e-5, family)
    again = BaseModel.load(tmp_path / "merged", device="cpu")
    assert_close(logits_of(again, None, TOKENS), found, 2e-5, family)


def test_a_tied_model_stays_tied_when_the_unembedding_is_not_trained(tmp_path):
    plain = plain_model("qwen2")
    plain.save_pretrained(tmp_path / "base")
    adapter = filled_adapter(engine_model(plain), 2, unembed=False)
    merge(tmp_path / "base", adapter, tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"]


def test_a_tied_unembedding_that_is_stored_too_parts_ways(tmp_path):
    plain_model("qwen2").save_pretrained(tmp_path / "base")
    file = tmp_path / "base" / "model.safetensors"
    tensors = load_file(file)
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        file,
        metadata={"format": "pt"},
    )
    base = BaseModel.load(tmp_path / "base", device="cpu")
    adapter = filled_adapter(base, 4)
    merge(tmp_path / "base", adapter, tmp_path / "merged")
    assert not json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"]
    merged = BaseModel.load(tmp_path / "merged", device="cpu")
    assert_close(logits_of(merged, None, TOKENS), logits_of(base, adapter, TOKENS), 2e-5)


def test_a_single_shard_keeps_its_index_and_other_weights_are_left_behind(tmp_path):
    source, shard = tmp_path / "base", "model-00001-of-00001.safetensors"
    plain_model("qwen3").save_pretrained(source)
    names = list(load_file(source / "model.safetensors"))
    (source / "model.safetensors").rename(source / shard)
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"layers.0.wq": torch.zeros(2)}, source / "consolidated.safetensors")
    (source / "pytorch_model.bin").write_bytes(b"not merged")
    (source / "pytorch_model.bin.index.json").write_text("{}")
    (source / "merges.txt").write_text("a b")
    base = BaseModel.load(source, device="cpu")
    adapter = filled_adapter(base, 4)
    merge(source, adapter, tmp_path / "merged")
    merged = BaseModel.load(tmp_path / "merged", device="cpu")
    assert_close(logits_of(merged, None, TOKENS), logits_of(base, adapter, TOKENS), 2e-5)
    kept = {path.name for path in (tmp_path / "merged").iterdir()}
    assert shard in kept
    assert "merges.txt" in kept
    assert not kept & {"consolidated.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json"}


def test_the_dtype_of_the_base_is_kept(tmp_path):
    plain = plain_model("llama", torch.bfloat16)
    plain.save_pretrained(tmp_path / "base")
    adapter = filled_adapter(engine_model(plain), 2)
    merge(tmp_path / "base", adapter, tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert merged.dtype == torch.bfloat16


def test_a_wrong_base_is_refused_and_leaves_nothing(tmp_path):
    adapter = filled_adapter(engine_model(plain_model("qwen3")), 2)
    with pytest.raises(UserFault, match="no folder of safetensors"):
        merge(tmp_path, adapter, tmp_path / "merged")
    plain_model("qwen3_moe").save_pretrained(tmp_path / "base")
    with pytest.raises(UserFault, match="has shape"):
        merge(tmp_path / "base", adapter, tmp_path / "merged")
    mlp_only = filled_adapter(engine_model(plain_model("qwen3")), 2, attn=False, unembed=False)
    with pytest.raises(UserFault, match="has no weight for"):
        merge(tmp_path / "base", mlp_only, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def write_gguf(path, plain, tokens, merges, cut="smollm", scaling=None):
    """A small Llama as llama.cpp would write it: q and k rows as rotary pairs, metadata, byte-level BPE."""
    gguf = pytest.importorskip("gguf")
    config = plain.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    if scaling is not None:
        writer.add_rope_scaling_type(scaling)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    state = plain.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    writer.add_tensor("output.weight", state["lm_head.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            x = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if theirs == "attn_q" else config.num_key_value_heads
                x = x.view(heads, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
            x = x.contiguous().numpy()
            name = f"blk.{layer}.{theirs}.weight"
            if theirs == "ffn_down":
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, gguf.quantize(x, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def small_llama():
    """A model that fits in a GGUF file, and its tokens."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "max_position_embeddings": 128,
    }
    config = LlamaConfig(**shape, vocab_size=97, num_attention_heads=4, num_key_value_heads=2)
    plain = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    letters = [chr(code) for code in range(33, 33 + 92)]
    return plain, ["<|end|>", "<|start|>", "<|stop|>", *letters, "ab", "abc"]


def test_a_gguf_file_becomes_the_model_it_holds(tmp_path):
    pytest.importorskip("gguf")
    from tokenizers import Tokenizer

    from tinkex.engine.gguf import convert_gguf

    plain, tokens = small_llama()
    write_gguf(tmp_path / "model.gguf", plain, tokens, ["a b", "ab c"])
    convert_gguf(tmp_path / "model.gguf", tmp_path / "folder")
    base = BaseModel.load(tmp_path / "folder", device="cpu")
    assert base.eos_ids == (2,)
    assert base.context_length == 128
    assert not base.tied
    with torch.no_grad():
        wanted = plain(torch.as_tensor(TOKENS)[None]).logits[0]
    assert_close(logits_of(base, None, TOKENS), wanted, 2e-2)
    tokenizer = Tokenizer.from_file(str(tmp_path / "folder" / "tokenizer.json"))
    assert tokenizer.encode("abc<|stop|>12").ids == [96, 2, tokens.index("1"), tokens.index("2")]
    written = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert (written["bos_token"], written["eos_token"], written["pad_token"]) == (
        "<|start|>",
        "<|stop|>",
        "<|stop|>",
    )
    assert written["chat_template"] == "{{ messages[0]['content'] }}"
    assert np.isfinite(wanted.numpy()).all()


def test_gguf_files_that_would_be_read_wrongly_are_refused(tmp_path):
    gguf = pytest.importorskip("gguf")
    from tinkex.engine.gguf import convert_gguf

    plain, tokens = small_llama()
    write_gguf(tmp_path / "cut.gguf", plain, tokens, ["a b"], cut="llama-bpe")
    with pytest.raises(UserFault, match="pre-tokenizer 'llama-bpe' is not supported"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "folder")
    write_gguf(tmp_path / "long.gguf", plain, tokens, ["a b"], scaling=gguf.RopeScalingType.YARN)
    with pytest.raises(UserFault, match="rope scaling 'yarn' is not supported"):
        convert_gguf(tmp_path / "long.gguf", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_other_gguf_architectures_are_refused(tmp_path):
    gguf = pytest.importorskip("gguf")
    from tinkex.engine.gguf import convert_gguf

    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserFault, match="mamba"):
        convert_gguf(tmp_path / "other.gguf", tmp_path / "folder")
