"""Where LoRA can go in a model: finds the modules and puts ours in their place."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from .adapters import LoraSite
from .experts import install_experts
from .faults import UserFault
from .lora import HEAD, LoraGroup, LoraLinear
from .plan import PlanSlot

_ATTENTION: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"), ("o_proj",))
_MLP: tuple[tuple[str, ...], ...] = (("gate_proj", "up_proj"), ("down_proj",))


def install(model: nn.Module, slot: PlanSlot, border: int = 0) -> tuple[LoraSite, ...]:
    """Replace the model's attention and MLP linears; the sites found, the unembedding's last.

    `border` leaves room for so many ranks beside the weights.
    """
    sites: list[LoraSite] = []
    for index, layer in enumerate(cast("Any", model).model.layers):
        path = f"model.layers.{index}"
        for names in _ATTENTION:
            sites += _replace(layer.self_attn, f"{path}.self_attn", names, "attn", slot, border)
        if hasattr(layer.mlp, "experts"):
            if model.config.hidden_act != "silu":
                raise UserFault(f"experts with activation {model.config.hidden_act!r} are not supported")
            sites += install_experts(layer.mlp.experts, f"{path}.mlp.experts", slot)
            continue
        for names in _MLP:
            sites += _replace(layer.mlp, f"{path}.mlp", names, "mlp", slot, border)
    head = cast("nn.Linear", cast("Any", model).lm_head)
    sites.append(LoraSite(HEAD, HEAD, "unembed", head.in_features, head.out_features))
    return tuple(sites)


def _replace(
    parent: nn.Module, path: str, names: tuple[str, ...], part: str, slot: PlanSlot, border: int
) -> list[LoraSite]:
    linears = [(f"{path}.{name}", cast("nn.Linear", getattr(parent, name))) for name in names]
    group = LoraGroup(f"{path}.{'+'.join(names)}", linears, border)
    for member, name in enumerate(names):
        setattr(parent, name, LoraLinear(group, member, slot))
    return [
        LoraSite(site_path, group.name, part, linear.in_features, linear.out_features)
        for site_path, linear in linears
    ]
