"""Tiny random models with the engine's and an independent form of each, and data to train them on."""

import copy
import math

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tinkex.engine.base_model import BaseModel
from tinkex.engine.messages import Datum, TrainPart
from tinkex.engine.trainer import Trainer, TrainState

torch.set_num_threads(1)

VOCAB = 97
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama_tied_mha": lambda: LlamaConfig(**SHAPE | {"num_key_value_heads": 4}, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=False),
    "mistral": lambda: MistralConfig(**SHAPE, head_dim=8, sliding_window=6),
}
MOE = lambda: Qwen3MoeConfig(  # noqa: E731
    **SHAPE,
    head_dim=8,
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    decoder_sparse_step=1,
    norm_topk_prob=True,
)
FAMILIES = list(CONFIGS)
ALL_FAMILIES = [*FAMILIES, "qwen3_moe"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]


def plain_model(family, dtype=torch.float32, seed=0):
    """A transformers model whose logits, and biases where it has them, are not near zero."""
    torch.manual_seed(seed)
    config = MOE() if family == "qwen3_moe" else CONFIGS[family]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.1)
            else:
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def engine_model(plain, generic=False):
    """The engine's form of a plain model; `generic` runs transformers' own layers around our linears."""
    base = BaseModel(copy.deepcopy(plain))
    if generic:
        base.decoder = None
    return base


def filled_adapter(base, rank, seed=1, size=0.3, **parts):
    """An adapter whose two factors both matter."""
    adapter = base.new_adapter(rank, seed=seed, **parts)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, x in adapter.master.named().items():
        draw = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        tensors[name] = x.clone() if name.endswith("lora_A") else draw * size / x.shape[-2] ** 0.5 / 4
    adapter.load(tensors)
    return adapter


def peft_model(plain, adapter):
    """transformers + PEFT with the same adapter on a dense model."""
    present = {site.path.rsplit(".", 1)[-1] for site in adapter.layout.sites}
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=[name for name in TARGETS if name in present],
    )
    model = get_peft_model(copy.deepcopy(plain), config, autocast_adapter_dtype=False)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, x in adapter.master.named().items():
            parameters[f"base_model.model.{name}.default.weight"].copy_(x)
    return model


def peft_gradients(model, adapter):
    """The gradients PEFT's parameters hold, by our names."""
    parameters = dict(model.named_parameters())
    return {
        name: parameters[f"base_model.model.{name}.default.weight"].grad for name in adapter.master.named()
    }


class ReferenceMoe(torch.nn.Module):
    """Qwen3-MoE with LoRA by plain formulas: every expert has weight matrices of its own."""

    def __init__(self, plain, adapter):
        super().__init__()
        self.plain = copy.deepcopy(plain)
        self.plain.config._experts_implementation = "eager"
        self.scale = adapter.scale
        self.factors = {name: x.clone().requires_grad_() for name, x in adapter.master.named().items()}
        for index, layer in enumerate(self.plain.model.layers):
            path = f"model.layers.{index}"
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                self._wrap(layer.self_attn, name, f"{path}.self_attn.{name}")
            experts = layer.mlp.experts
            experts.forward = self._experts(experts, f"{path}.mlp.experts")
        self._wrap(self.plain, "lm_head", "lm_head")

    def _pair(self, path):
        return self.factors.get(f"{path}.lora_A"), self.factors.get(f"{path}.lora_B")

    def _wrap(self, parent, name, path):
        linear = getattr(parent, name)
        a, b = self._pair(path)
        if a is None:
            return
        inner = linear.forward
        linear.forward = lambda x: inner(x) + self.scale * (x @ a.t()) @ b.t()

    def _experts(self, experts, path):
        def forward(hidden, index, weights):
            out = torch.zeros_like(hidden)
            for token in range(len(hidden)):
                for slot in range(index.shape[1]):
                    expert = int(index[token, slot])
                    half = experts.gate_up_proj.shape[1] // 2
                    base = experts.gate_up_proj[expert]
                    gate, up, down = base[:half], base[half:], experts.down_proj[expert]
                    a, b = self._pair(f"{path}.gate_proj")
                    if a is not None:
                        gate = gate + self.scale * b[expert] @ a
                        a, b = self._pair(f"{path}.up_proj")
                        up = up + self.scale * b[expert] @ a
                        a, b = self._pair(f"{path}.down_proj")
                        down = down + self.scale * b @ a[expert]
                    x = hidden[token]
                    y = down @ (functional.silu(gate @ x) * (up @ x))
                    out = out.index_add(0, torch.tensor([token]), (y * weights[token, slot])[None])
            return out

        return forward

    def forward(self, input_ids):
        return self.plain(input_ids, use_cache=False)

    def gradients(self):
        return {name: x.grad for name, x in self.factors.items()}


def reference(plain, adapter):
    """An independent model with the adapter, and a function for its adapter gradients."""
    if plain.config.model_type == "qwen3_moe":
        model = ReferenceMoe(plain, adapter)
        return model, model.gradients
    model = peft_model(plain, adapter)
    return model, lambda: peft_gradients(model, adapter)


def reference_logprobs(model, tokens, targets):
    """Target logprobs [N] or [N, K] of one sequence by full logits."""
    logits = model(torch.as_tensor(tokens)[None]).logits[0]
    wide = logits.double() if logits.dtype == torch.float64 else logits.float()
    full = torch.log_softmax(wide, dim=-1)
    index = torch.as_tensor(targets)
    return full.gather(1, index[:, None])[:, 0] if index.dim() == 1 else full.gather(1, index)


def make_data(lengths, seed=0, width=None, loss="cross_entropy"):
    """Random datums with the inputs a loss reads."""
    random = np.random.default_rng(seed)
    data = []
    for n in lengths:
        shape = (n,) if width is None else (n, width)
        inputs = {"target_tokens": random.integers(0, VOCAB, shape)}
        if loss == "cross_entropy":
            inputs["weights"] = random.normal(size=shape).astype(np.float32)
        else:
            inputs["logprobs"] = (-math.log(VOCAB) + random.normal(size=shape)).astype(np.float32)
            inputs["advantages"] = random.normal(size=shape).astype(np.float32)
        if loss == "gspo":
            mask = (random.random(shape) < 0.7).astype(np.float32)
            mask[-1] = 1
            inputs["sequence_ratio_mask"] = mask
        data.append(Datum(random.integers(0, VOCAB, n), inputs))
    return tuple(data)


def part(data, loss="cross_entropy", forward_only=False, **config):
    return TrainPart("m", tuple(data), loss, config, forward_only)


def run_one(base, adapter, data, loss="cross_entropy", config=None, **options):
    """One pass of one adapter: its state after, and the result."""
    state = TrainState(adapter)
    (result,) = Trainer(base, **options).run([(state, part(data, loss, **(config or {})))])
    return state, result


def gradient(state):
    """The accumulated gradient by name."""
    return state.grads.named()


def assert_close(found, wanted, tolerance, what=""):
    """Largest difference within `tolerance` of the largest wanted magnitude."""
    found, wanted = torch.as_tensor(found), torch.as_tensor(wanted)
    scale = max(float(wanted.abs().max()), 1e-8)
    worst = float((found.double() - wanted.double()).abs().max())
    assert worst <= tolerance * scale, f"{what}: {worst:.3g} apart, largest {scale:.3g}"
