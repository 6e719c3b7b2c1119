"""Hidden states, logits and logprobs against transformers + PEFT (experts: against plain formulas).

Tolerances are relative to the largest value: 2e-5 in float32, 3e-2 in bfloat16 (8 bits of mantissa, two
layers).
"""

import copy
import json

import pytest
import torch

from tinkex.engine.base_model import BaseModel, choose_dtype
from tinkex.engine.faults import UserFault
from tinkex.engine.packed_attention import packed_attention
from tinkex.engine.plan import Plan, Segment
from tinkex.engine.trainer import Trainer, TrainState

from .training_models import (
    ALL_FAMILIES,
    FAMILIES,
    SHAPE,
    assert_close,
    engine_model,
    filled_adapter,
    make_data,
    part,
    plain_model,
    reference,
    reference_logprobs,
    run_one,
)

LENGTHS = [9, 1, 17, 4]


def logits_of(base, adapter, tokens):
    n = len(tokens)
    plan = Plan(packed_attention, (Segment(adapter, 0, n),), (0, n))
    ids = torch.as_tensor(tokens)[None]
    hidden = base.hidden_states(ids, torch.arange(n)[None], plan)
    return base.logits(hidden, plan.segments)


@pytest.mark.parametrize("generic", [False, True], ids=["fused", "generic"])
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_logits_with_an_adapter(family, generic):
    plain = plain_model(family)
    base = engine_model(plain, generic)
    adapter = filled_adapter(base, 4)
    model, _ = reference(plain, adapter)
    tokens = make_data([23])[0].tokens
    with torch.no_grad():
        wanted = model(torch.as_tensor(tokens)[None]).logits[0]
        assert_close(logits_of(base, adapter, tokens), wanted, 2e-5, family)
        bare = plain(torch.as_tensor(tokens)[None]).logits[0]
        assert_close(logits_of(base, None, tokens), bare, 2e-5, family)
    assert (wanted - bare).abs().max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_fused_decoder(family):
    assert engine_model(plain_model(family)).decoder is not None


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_fresh_adapter_changes_nothing(family):
    plain = plain_model(family)
    base = engine_model(plain)
    tokens = make_data([11])[0].tokens
    assert torch.equal(logits_of(base, base.new_adapter(4, seed=3), tokens), logits_of(base, None, tokens))


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_logprobs_of_ragged_data(family):
    plain = plain_model(family)
    base = engine_model(plain)
    adapter = filled_adapter(base, 4)
    model, _ = reference(plain, adapter)
    data = make_data(LENGTHS)
    (result,) = Trainer(base).run([(TrainState(adapter), part(data, forward_only=True))])
    for datum, output in zip(data, result.outputs, strict=True):
        with torch.no_grad():
            wanted = reference_logprobs(model, datum.tokens, datum.inputs["target_tokens"])
        assert_close(output["logprobs"], wanted, 2e-5, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_in_bfloat16(family):
    plain = plain_model(family, torch.bfloat16)
    base = engine_model(plain)
    adapter = filled_adapter(base, 4)
    assert adapter.compute.flat.dtype == torch.bfloat16
    assert adapter.master.flat.dtype == torch.float32
    model, _ = reference(plain, adapter)
    data = make_data(LENGTHS)
    _, result = run_one(base, adapter, data)
    for datum, output in zip(data, result.outputs, strict=True):
        with torch.no_grad():
            wanted = reference_logprobs(model, datum.tokens, datum.inputs["target_tokens"])
        assert_close(output["logprobs"], wanted, 3e-2, family)


def test_long_sequences_use_the_other_attention_and_agree():
    for family in ("qwen3", "mistral"):
        plain = plain_model(family)
        base = engine_model(plain)
        adapter = filled_adapter(base, 4)
        model, _ = reference(plain, adapter)
        data = make_data([200, 30, 150])
        _, result = run_one(base, adapter, data)
        for datum, output in zip(data, result.outputs, strict=True):
            with torch.no_grad():
                wanted = reference_logprobs(model, datum.tokens, datum.inputs["target_tokens"])
            assert_close(output["logprobs"], wanted, 2e-5, family)


def test_a_folder_loads_as_the_model_it_was(tmp_path):
    plain = plain_model("qwen3")
    plain.generation_config.eos_token_id = [5, 1]
    plain.save_pretrained(tmp_path / "model")
    base = BaseModel.load(tmp_path / "model", device="cpu")
    assert (base.vocab_size, base.hidden_size, base.layers) == (97, 32, 2)
    assert base.context_length == SHAPE["max_position_embeddings"]
    assert base.eos_ids == (5, 1)
    assert not base.tied
    assert base.dtype == torch.float32
    tokens = make_data([7])[0].tokens
    with torch.no_grad():
        wanted = plain(torch.as_tensor(tokens)[None]).logits[0]
    assert_close(logits_of(base, None, tokens), wanted, 2e-5)
    half = BaseModel.load(tmp_path / "model", device="cpu", dtype="bfloat16")
    assert half.dtype == torch.bfloat16


def test_two_models_of_one_config_do_not_share_it():
    first = plain_model("llama")
    second = copy.deepcopy(first)
    base = engine_model(first)
    assert base.config is not first.config
    assert first.config._attn_implementation == second.config._attn_implementation == "eager"


def test_what_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(UserFault, match="no config"):
        BaseModel.load(tmp_path)
    model = plain_model("llama")
    model.config.model_type = "gpt_neox"
    with pytest.raises(UserFault, match="not supported"):
        BaseModel(model)
    with pytest.raises(UserFault, match="unknown dtype"):
        choose_dtype(torch.device("cpu"), "float99")


def test_a_quantised_model_is_refused_by_its_method(tmp_path):
    plain_model("qwen3").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserFault, match="quantised by gptq; use the model's unquantised weights"):
        BaseModel.load(tmp_path, device="cpu")


def test_a_call_past_the_engine_with_a_padding_mask_is_refused():
    base = engine_model(plain_model("llama"), generic=True)
    with pytest.raises(RuntimeError, match="without a plan"):
        base.model(torch.tensor([[1, 2, 3]]), attention_mask=torch.tensor([[0, 1, 1]]))
