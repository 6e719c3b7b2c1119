"""Tiny random models of every family, adapters with something in them, and the same as one plain model."""

import copy

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tinkex.engine.base_model import BaseModel
from tinkex.engine.messages import BASE_VERSION, Failed, Sample, SampleDone, SamplingParams, TokenStep
from tinkex.engine.sampler import Sampler, SamplerOptions

torch.set_num_threads(1)
VOCAB = 96
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "qwen2": lambda: Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True),
    "mistral": lambda: MistralConfig(**SHAPE, head_dim=8, sliding_window=7),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SHAPE,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        decoder_sparse_step=1,
    ),
}
FAMILIES = list(CONFIGS)


def plain_model(family, seed=0, dtype=torch.float32):
    """A transformers model with weights large enough for logits to differ."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model.eval()


def base_model(family, seed=0):
    """The engine's base model, and the plain one it was made of."""
    plain = plain_model(family, seed)
    return BaseModel(copy.deepcopy(plain)), plain


def trained_adapter(base, rank, seed, **parts):
    """An adapter that changes the logits."""
    adapter = base.new_adapter(rank, seed=seed, **parts)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: factor.clone() for name, factor in adapter.master.named().items()}
    for name, factor in tensors.items():
        if name.endswith("lora_B"):
            factor.copy_(torch.randn(factor.shape, generator=generator) * 0.02)
    adapter.load(tensors)
    return adapter


def merged(plain, adapter):
    """The plain model with `W + scale * B A` written into its weights."""
    model = copy.deepcopy(plain)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with torch.no_grad():
        for site in adapter.layout.sites:
            factors = adapter.master.named()
            a, b = factors[f"{site.path}.lora_A"], factors[f"{site.path}.lora_B"]
            if not site.experts:
                model.get_submodule(site.path).weight += adapter.scale * (b @ a)
                continue
            parent, name = site.path.rsplit(".", 1)
            delta = adapter.scale * (b @ a)
            experts = model.get_submodule(parent)
            if name == "down_proj":
                experts.down_proj += delta
            else:
                half = experts.gate_up_proj.shape[1] // 2
                experts.gate_up_proj[:, :half] += delta if name == "gate_proj" else 0
                experts.gate_up_proj[:, half:] += delta if name == "up_proj" else 0
    return model


def prompts(count, low=3, high=40, seed=5):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(low, high, (count,), generator=generator).tolist()
    return [torch.randint(2, VOCAB, (n,), generator=generator).numpy() for n in lengths]


class Collected:
    """What a sampler answered, by request."""

    def __init__(self):
        self.first, self.tokens, self.logprobs, self.reasons = {}, {}, {}, {}
        self.top, self.done, self.failed, self.steps = {}, {}, {}, 0

    def take(self, answers):
        for answer in answers:
            if isinstance(answer, TokenStep):
                self.steps += 1
                for stream, token, logprob in zip(
                    answer.streams, answer.tokens, answer.logprobs, strict=True
                ):
                    self.tokens.setdefault(int(stream), []).append(int(token))
                    self.logprobs.setdefault(int(stream), []).append(float(logprob))
                self.reasons.update(zip(answer.ended.tolist(), answer.reasons.tolist(), strict=True))
                if answer.top_streams is not None:
                    for stream, *top in zip(
                        answer.top_streams, answer.top_tokens, answer.top_logprobs, strict=True
                    ):
                        self.top.setdefault(int(stream), []).append(top)
            elif isinstance(answer, SampleDone):
                self.done[answer.request_id] = answer
            elif isinstance(answer, Failed):
                self.failed[answer.request_id] = answer

    def of(self, name, index=0):
        stream = self.first[name] + index
        return self.tokens.get(stream, [])

    def logprobs_of(self, name, index=0):
        return self.logprobs[self.first[name] + index]

    def reason(self, name, index=0):
        return self.reasons[self.first[name] + index]


def request(name, prompt, num_samples=1, version=BASE_VERSION, owner="", scores=None, media=(), **params):
    extra = {} if scores is None else {"scores": scores}
    return Sample(
        0, name, version, prompt, num_samples, SamplingParams(**params), owner=owner, media=media, **extra
    )


def drain(sampler, got, limit=5000):
    for _ in range(limit):
        if not sampler.busy:
            return got
        got.take(sampler.step())
    raise AssertionError("sampling makes no progress")


def sample(base, *requests, adapters=None, sampler=None, **options):
    """Run requests together to the end."""
    sampler = sampler or Sampler(
        base, options=SamplerOptions(**({"kv_bytes": 8 << 20} | options)), detokenise=spell
    )
    got = Collected()
    for item in requests:
        got.first[item.request_id] = sampler.submit(item, (adapters or {}).get(item.version)).first_stream
    return drain(sampler, got)


def spell(tokens):
    """Each token as one character."""
    return "".join(chr(32 + token) for token in tokens)
