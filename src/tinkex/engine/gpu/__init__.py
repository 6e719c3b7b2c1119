"""Llama-shaped models on a CUDA device: fused kernels, and adapters stored beside the base weights."""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import Any

import torch
from torch import nn

from ..decoder import Decoder
from ..logprobs import Head
from ..sampling_math import FastDraw

CAPACITY = 256
"""Ranks that fit beside the weights; passes whose adapters have more are computed one adapter at a time."""
log = logging.getLogger(__name__)


@functools.cache
def kernels_at_hand() -> bool:
    """Whether kernels can be compiled here."""
    return importlib.util.find_spec("triton") is not None


def room_beside(model: nn.Module) -> int:
    """How many ranks to leave room for beside a model's weights: none where the kernels do not apply."""
    config: Any = model.config
    weight: torch.Tensor = model.lm_head.weight
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    fits = (
        weight.is_cuda
        and weight.dtype in (torch.float16, torch.bfloat16)
        and hasattr(model.model.layers[0].mlp, "gate_proj")
        and config.hidden_act == "silu"
        and size in (32, 64, 128, 256)
        and config.intermediate_size % 64 == 0
        and config.hidden_size % 16 == 0
    )
    return CAPACITY if fits and kernels_at_hand() else 0


def bordered(model: nn.Module) -> Decoder | None:
    """The decoder over weights that `room_beside` left room at; None for layers of another shape."""
    from .border import Border
    from .fused_decoder import FusedDecoder

    config = model.config
    plain = Decoder.over(model.model, config)
    if (
        plain is None
        or not plain.dense
        or any(getattr(each, "bias", None) is not None for each in [model.lm_head])
    ):
        return plain
    groups = [g for layer in plain.layers for g in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    border = Border(groups, _head_with_room(model), model.lm_head.out_features)
    log.info("room for %d ranks of adapters beside the weights: %.2f GB", CAPACITY, border.nbytes() / 1e9)
    return FusedDecoder(model.model, config, border)


def fused_head(weight_vc: torch.Tensor, chunk_rows: int | None) -> Head:
    """What scores target tokens with the kernels here."""
    from .fused_head import FusedHead

    return FusedHead(weight_vc, chunk_rows=chunk_rows)


def fused_draw() -> FastDraw:
    """What draws tokens with the kernels here."""
    from .draw_kernels import draw_tokens

    return draw_tokens


def _head_with_room(model: Any) -> torch.Tensor:
    head, embed = model.lm_head, model.get_input_embeddings()
    tied = head.weight.data_ptr() == embed.weight.data_ptr()
    vocab, size = head.weight.shape
    wide = head.weight.new_zeros(vocab + CAPACITY, size + CAPACITY)
    wide[:vocab, :size] = head.weight.data
    head.weight = nn.Parameter(wide[:vocab, :size], requires_grad=False)
    if tied:
        embed.weight = head.weight
    return wide
