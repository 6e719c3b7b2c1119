"""Exported folders load in PEFT with every tensor and give the same logits; PEFT folders come back in."""

import copy
import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from tinkex.engine.faults import UserFault
from tinkex.engine.peft_format import CONFIG, WEIGHTS, export_peft, import_peft

from .test_forward_reference import logits_of
from .training_models import (
    ALL_FAMILIES,
    assert_close,
    engine_model,
    filled_adapter,
    make_data,
    plain_model,
)

TOKENS = make_data([19], seed=4)[0].tokens


def load_in_peft(plain, folder):
    """The plain model with a PEFT folder; fails on any tensor PEFT did not take."""
    model = copy.deepcopy(plain)
    if plain.config.model_type == "qwen3_moe":
        model.config._experts_implementation = "eager"
    wrapped = PeftModel.from_pretrained(model, folder)
    again = wrapped.load_adapter(folder, "again")
    assert not again.unexpected_keys
    assert not [key for key in again.missing_keys if "lora_" in key and ".again." in key]
    wrapped.set_adapter("default")
    return wrapped


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_peft_loads_every_tensor_and_gives_equal_logits(tmp_path, family):
    plain = plain_model(family)
    base = engine_model(plain)
    adapter = filled_adapter(base, 4)
    export_peft(tmp_path / "peft", adapter)
    model = load_in_peft(plain, tmp_path / "peft")
    with torch.no_grad():
        wanted = model(torch.as_tensor(TOKENS)[None]).logits[0]
        bare = plain(torch.as_tensor(TOKENS)[None]).logits[0]
    assert (wanted - bare).abs().max() > 0.1
    assert_close(logits_of(base, adapter, TOKENS), wanted, 2e-5, family)


@pytest.mark.parametrize("family", ALL_FAMILIES)
@pytest.mark.parametrize("parts", [{}, {"mlp": False}, {"attn": False, "unembed": False}])
def test_an_export_comes_back_as_it_was(tmp_path, family, parts):
    base = engine_model(plain_model(family))
    adapter = filled_adapter(base, 3, **parts)
    export_peft(tmp_path / "peft", adapter)
    back = import_peft(tmp_path / "peft", base)
    assert torch.equal(back.master.flat, adapter.master.flat)
    assert (back.rank, back.alpha, back.parts) == (adapter.rank, adapter.alpha, adapter.parts)


def test_an_adapter_made_by_peft_is_a_starting_state(tmp_path):
    plain = plain_model("qwen3")
    config = LoraConfig(r=5, lora_alpha=20, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(copy.deepcopy(plain), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    model.save_pretrained(tmp_path / "theirs")
    base = engine_model(plain)
    adapter = import_peft(tmp_path / "theirs", base)
    assert (adapter.rank, adapter.scale, adapter.parts) == (5, 4.0, {"attn", "mlp"})
    with torch.no_grad():
        wanted = model(torch.as_tensor(TOKENS)[None]).logits[0]
    assert_close(logits_of(base, adapter, TOKENS), wanted, 2e-5)


def rewrite(folder, names):
    tensors = load_file(folder / WEIGHTS)
    save_file({names(key): x for key, x in tensors.items()}, folder / WEIGHTS)


def test_hosted_names_of_unembedding_and_stacked_experts_are_known(tmp_path):
    base = engine_model(plain_model("qwen3_moe"))
    adapter = filled_adapter(base, 2)
    export_peft(tmp_path / "peft", adapter)
    short = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    tensors = {}
    for name, x in adapter.master.named().items():
        path, side = name.rsplit(".", 1)
        parent, last = path.rsplit(".", 1) if "." in path else ("", path)
        if "experts" in path:
            path, x = f"{parent}.{short[last]}", x if x.dim() == 3 else x[None]
        elif path == "lm_head":
            path = "model.unembed_tokens"
        tensors[f"base_model.model.{path}.{side}.weight"] = x.contiguous()
    save_file(tensors, tmp_path / "peft" / WEIGHTS)
    assert torch.equal(import_peft(tmp_path / "peft", base).master.flat, adapter.master.flat)


@pytest.mark.parametrize("rank", [1, 8, 64])
def test_the_scale_is_32_by_rank_here_and_in_an_export(tmp_path, rank):
    base = engine_model(plain_model("llama"))
    adapter = base.new_adapter(rank)
    assert adapter.scale == 32 / rank
    export_peft(tmp_path / "peft", adapter)
    config = json.loads((tmp_path / "peft" / CONFIG).read_text())
    assert (config["lora_alpha"], config["r"]) == (32, rank)


def test_what_cannot_be_kept_is_refused(tmp_path):
    base = engine_model(plain_model("qwen3_moe"))
    adapter = filled_adapter(base, 2)
    folder = tmp_path / "peft"
    with pytest.raises(UserFault, match="lacks"):
        import_peft(folder, base)
    export_peft(folder, adapter)
    config = json.loads((folder / CONFIG).read_text())
    for change, text in (
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"bias": "all"}, "biases"),
        ({"init_lora_weights": "pissa_niter_4"}, "begun by pissa_niter_4 change the base model"),
        ({"init_lora_weights": "olora"}, "begun by olora"),
        ({"r": 3}, "shape"),
    ):
        (folder / CONFIG).write_text(json.dumps(config | change))
        with pytest.raises(UserFault, match=text):
            import_peft(folder, base)
    (folder / CONFIG).write_text(json.dumps(config | {"init_lora_weights": "gaussian"}))
    assert torch.equal(import_peft(folder, base).master.flat, adapter.master.flat)
    (folder / CONFIG).write_text(json.dumps(config))
    tensors = load_file(folder / WEIGHTS)
    key = "base_model.model.model.layers.0.mlp.experts.2.gate_proj.lora_A.weight"
    save_file(tensors | {key: tensors[key] + 1}, folder / WEIGHTS)
    with pytest.raises(UserFault, match="experts have different lora_A"):
        import_peft(folder, base)
    save_file({name: x for name, x in tensors.items() if name != key}, folder / WEIGHTS)
    with pytest.raises(UserFault, match="5 of 6 experts"):
        import_peft(folder, base)
    save_file(tensors, folder / WEIGHTS)
    rewrite(folder, lambda name: name.replace("q_proj", "x_proj"))
    with pytest.raises(UserFault, match="no place"):
        import_peft(folder, base)
