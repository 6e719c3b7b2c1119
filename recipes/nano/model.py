"""A small decoder (RoPE, grouped heads, SwiGLU, tied embedding) for training and batched sampling."""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; `qk_norm` is what makes it Qwen3 rather than Llama."""

    vocab: int
    layers: int = 6
    width: int = 192
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    mlp: int = 512
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    qk_norm: bool = True

    def as_dict(self) -> dict:
        """The sizes as plain values."""
        return asdict(self)


class Norm(nn.Module):
    """Root-mean-square norm with a learned scale, computed in float32."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale `x` to unit root mean square over its last dimension."""
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rope_tables(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position, each [context, head_dim]."""
    half = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.context, device=device).float(), shape.rope_theta**-half)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions in the half-split layout."""
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)


class Block(nn.Module):
    """Attention and MLP, each behind a norm and a residual."""

    def __init__(self, shape: Shape):
        super().__init__()
        s = self.shape = shape
        self.input_layernorm = Norm(s.width, s.norm_eps)
        self.q_proj = nn.Linear(s.width, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.width, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.width, bias=False)
        self.q_norm = Norm(s.head_dim, s.norm_eps) if s.qk_norm else nn.Identity()
        self.k_norm = Norm(s.head_dim, s.norm_eps) if s.qk_norm else nn.Identity()
        self.post_attention_layernorm = Norm(s.width, s.norm_eps)
        self.gate_proj = nn.Linear(s.width, s.mlp, bias=False)
        self.up_proj = nn.Linear(s.width, s.mlp, bias=False)
        self.down_proj = nn.Linear(s.mlp, s.width, bias=False)

    def qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values as [batch, heads, time, head_dim], positions applied."""
        s, (batch, time) = self.shape, x.shape[:2]
        x = self.input_layernorm(x)
        q = self.q_norm(self.q_proj(x).view(batch, time, s.heads, s.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, time, s.kv_heads, s.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, s.kv_heads, s.head_dim).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add the attention output and the MLP to the residual stream."""
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Causal attention over whole rows."""
        q, k, v = self.qkv(x, cos, sin)
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.shape.heads != self.shape.kv_heads
        )
        return self.finish(x, attended)

    def step(self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, at: int) -> Tensor:
        """One new position, with keys and values of the earlier ones in the given buffers."""
        q, k, v = self.qkv(x, cos, sin)
        keys[:, :, at : at + 1], values[:, :, at : at + 1] = k, v
        attended = functional.scaled_dot_product_attention(
            q,
            keys[:, :, : at + 1],
            values[:, :, : at + 1],
            enable_gqa=self.shape.heads != self.shape.kv_heads,
        )
        return self.finish(x, attended)


class Decoder(nn.Module):
    """Embedding, blocks, final norm; the embedding is also the output head."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width, shape.norm_eps)
        cos, sin = rope_tables(shape, torch.device("cpu"))
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Normal(0, 0.02) weights, residual outputs scaled down with depth."""
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 if "embed" in name else p.shape[1] ** -0.5
                if "o_proj" in name or "down_proj" in name:
                    std *= (2 * self.shape.layers) ** -0.5
                nn.init.normal_(p, std=std)

    def hidden(self, ids: Tensor) -> Tensor:
        """Final hidden states of whole rows, [batch, time, width]."""
        x = self.embed(ids)
        cos, sin = self.cos[: ids.shape[1]].to(x.dtype), self.sin[: ids.shape[1]].to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of whole rows, [batch, time, vocab]."""
        return functional.linear(self.hidden(ids), self.embed.weight)


def loss_sums(model: Decoder, ids: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """Summed next-token loss over the positions whose target is counted, and how many there are."""
    logits = model(ids[:, :-1])
    losses = functional.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
    ).view(ids.shape[0], -1)
    weights = counted[:, 1:].float()
    return (losses * weights).sum(), weights.sum()


@torch.inference_mode()
def decode(
    model: Decoder,
    prompts: list[list[int]],
    new_tokens: int,
    stop: tuple[int, ...],
    temperature: float | Tensor = 1.0,
    min_p: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Continue every prompt in one batch; a temperature of 0 is greedy; stop tokens are not returned."""
    device, shape = model.embed.weight.device, model.shape
    dtype = model.embed.weight.dtype
    lengths = [len(p) for p in prompts]
    total = min(shape.context, max(lengths) + new_tokens)
    ids = torch.zeros(len(prompts), total, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt[:total])
    ids, starts = ids.to(device), torch.tensor(lengths, device=device)
    ends = (starts + new_tokens).clamp(max=total)
    buffers = [
        torch.zeros(2, len(prompts), shape.kv_heads, total, shape.head_dim, device=device, dtype=dtype)
        for _ in range(shape.layers)
    ]
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    finish = ends.clone()
    stops = torch.tensor(stop, device=device)
    first = min(lengths)
    for at in range(total - 1):
        x = model.embed(ids[:, at : at + 1])
        cos, sin = model.cos[at : at + 1].to(dtype), model.sin[at : at + 1].to(dtype)
        for block, (keys, values) in zip(model.blocks, buffers, strict=True):
            x = block.step(x, cos, sin, keys, values, at)
        if at + 1 < first:
            continue
        logits = functional.linear(model.norm(x[:, 0]), model.embed.weight).float()
        chosen = choose(logits, temperature, min_p, generator)
        free = (starts <= at + 1) & ~done & (ends > at + 1)
        ids[:, at + 1] = torch.where(free, chosen, ids[:, at + 1])
        stopped = free & torch.isin(chosen, stops)
        finish = torch.where(stopped, at + 1, finish)
        done |= stopped
        if at % 16 == 0 and bool((done | (ends <= at + 1)).all()):
            break
    rows, finish_list = ids.tolist(), finish.tolist()
    return [row[a:b] for row, a, b in zip(rows, lengths, finish_list, strict=True)]


def choose(
    logits: Tensor, temperature: float | Tensor, min_p: float, generator: torch.Generator | None
) -> Tensor:
    """Draw one token a row; with `min_p`, tokens less likely than that share of the best are left out."""
    if isinstance(temperature, float | int):
        if temperature == 0:
            return logits.argmax(-1)
    else:
        temperature = temperature[:, None]
    logits = logits / temperature
    if min_p > 0:
        floor = logits.amax(-1, keepdim=True) + torch.log(torch.tensor(min_p, device=logits.device))
        logits = logits.masked_fill(logits < floor, float("-inf"))
    # The exponential race draws from softmax(logits) without building the probabilities.
    noise = torch.empty_like(logits).exponential_(generator=generator)
    return (logits - noise.log()).argmax(-1)
