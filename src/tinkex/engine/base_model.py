"""A frozen base model from a folder, its modules replaced in place so that passes can mix adapters.

Loading knows nothing of tokenizers: a pass takes token ids and gives final hidden states; `logits` and the
chunked logprobs do the rest.
"""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .adapters import Adapter, LoraLayout
from .decoder import Decoder, TrainingPass
from .experts import EXPERTS
from .faults import UserFault
from .gpu import bordered, fused_draw, fused_head, room_beside
from .logprobs import Head
from .lora import head_logits
from .model_folder import check_folder
from .plan import Plan, PlanSlot, Segment
from .sampling_math import FastDraw
from .sites import install

ATTENTION = "tinkex"
FOLDABLE = 1 << 24
"""Models of at most this many weights fold adapters into them for training passes on a CPU."""
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")
log = logging.getLogger(__name__)


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    tinkex_plan: Plan | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    if attention_mask is not None:
        raise UserFault("padding masks are not used here: rows are packed without padding")
    if tinkex_plan is None:
        raise RuntimeError("the model was called without a plan; use BaseModel.hidden_states")
    q_thd, k_tkd, v_tkd = (x[0].transpose(0, 1) for x in (query, key, value))
    out = tinkex_plan.attention(
        tinkex_plan, int(module.layer_idx), q_thd, k_tkd, v_tkd, scaling, sliding_window
    )
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The device asked for, else CUDA, else MPS, else the CPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def choose_dtype(device: torch.device, dtype: str | torch.dtype | None = None) -> torch.dtype:
    """The dtype asked for, else bfloat16 on CUDA and float32 elsewhere."""
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise UserFault(f"unknown dtype {dtype!r}")
        return found
    return dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)


class BaseModel:
    """The frozen weights all adapters share, with what a caller must know about them."""

    def __init__(self, model: nn.Module) -> None:
        """Take over a transformers causal language model; its modules are replaced in place."""
        self.config = model.config
        family = getattr(self.config, "model_type", "?")
        if family not in FAMILIES:
            raise UserFault(f"model family {family!r} is not supported; supported: {', '.join(FAMILIES)}")
        model.eval().requires_grad_(False)
        self.config._attn_implementation = ATTENTION
        self.config._experts_implementation = EXPERTS
        self.config.use_cache = False
        self.model = model
        self.slot = PlanSlot()
        border = room_beside(model)
        self.sites = install(model, self.slot, border)
        self.decoder = bordered(model) if border else Decoder.over(model.model, self.config)
        self.head: nn.Linear = model.lm_head
        self.device: torch.device = self.head.weight.device
        self.dtype: torch.dtype = self.head.weight.dtype
        self.vocab_size: int = self.head.weight.shape[0]
        self.hidden_size: int = self.head.weight.shape[1]
        self.layers: int = self.config.num_hidden_layers
        self.context_length: int = self.config.max_position_embeddings
        self.tied = self.head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
        self.eos_ids: tuple[int, ...] = _eos_ids(model)
        self._linear_weights = sum(site.inner * site.outer for site in self.sites if not site.experts)
        self._layouts: dict[tuple[bool, bool, bool], LoraLayout] = {}

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        trust_remote_code: bool = False,
    ) -> BaseModel:
        """Read a folder of safetensors with a Hugging Face config; device and dtype are logged."""
        where = choose_device(device)
        kind = choose_dtype(where, dtype)
        check_folder(folder)
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
        quantised = getattr(config, "quantization_config", None)
        if quantised is not None:
            method = dict(quantised).get("quant_method", "some method")
            raise UserFault(f"{folder} is quantised by {method}; use the model's unquantised weights")
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            config=copy.deepcopy(config),
            dtype=kind,
            attn_implementation=ATTENTION,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
        ).to(where)
        log.info("%s on %s in %s", Path(folder).name, where, str(kind).removeprefix("torch."))
        return cls(model)

    def layout(self, *, attn: bool = True, mlp: bool = True, unembed: bool = True) -> LoraLayout:
        """Which modules an adapter with these parts changes."""
        key = (attn, mlp, unembed)
        if key not in self._layouts:
            wanted = {name for name, on in zip(("attn", "mlp", "unembed"), key, strict=True) if on}
            self._layouts[key] = LoraLayout(site for site in self.sites if site.part in wanted)
        return self._layouts[key]

    def new_adapter(
        self,
        rank: int,
        *,
        seed: int | None = None,
        attn: bool = True,
        mlp: bool = True,
        unembed: bool = True,
    ) -> Adapter:
        """A fresh adapter on the model's device: A random, B zero, so that it changes nothing yet."""
        layout = self.layout(attn=attn, mlp=mlp, unembed=unembed)
        return Adapter(layout, rank, seed=seed, device=self.device, dtype=self.dtype)

    def hidden_states(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, plan: Plan
    ) -> torch.Tensor:
        """Final-norm hidden states `[T, hidden]` of one row; ids and positions are `[1, T]`."""
        if self.decoder is not None:
            return self.decoder.run(input_ids, position_ids, plan)
        self.slot.plan = plan
        try:
            out = self.model.model(
                input_ids=input_ids, position_ids=position_ids, use_cache=False, tinkex_plan=plan
            )
        finally:
            self.slot.plan = None
        return out.last_hidden_state[0]

    @property
    def by_hand(self) -> bool:
        """Whether training passes never ask autograd, so that they may run in inference mode."""
        return self.decoder is not None and self.decoder.dense and self.device.type == "cpu"

    @property
    def foldable(self) -> bool:
        """Whether the weights are few and exact enough to have adapters added to them."""
        wide = self.dtype in (torch.float32, torch.float64)
        return wide and self.device.type == "cpu" and self._linear_weights <= FOLDABLE

    def training_pass(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, plan: Plan
    ) -> TrainingPass:
        """A forward pass with `hidden` states, whose `backward` adds to the plan's gradient buffers."""
        if self.decoder is not None:
            return self.decoder.start(input_ids, position_ids, plan)
        return AutogradPass(self, plan, self.hidden_states(input_ids, position_ids, plan))

    @property
    def unembed_weight(self) -> torch.Tensor:
        """The unembedding matrix `[vocab, hidden]`; with tied embeddings it is theirs."""
        return self.head.weight

    def target_head(self, chunk_rows: int | None = None) -> Head:
        """What scores target tokens, so many rows at a time."""
        if self.decoder is not None and self.decoder.border is not None:
            return fused_head(self.unembed_weight, chunk_rows)
        return Head(self.unembed_weight, chunk_rows=chunk_rows)

    def fast_draw(self) -> FastDraw | None:
        """What draws tokens faster than plain operations do, where there is such."""
        return fused_draw() if self.decoder is not None and self.decoder.border is not None else None

    def logits(self, hidden: torch.Tensor, segments: tuple[Segment, ...]) -> torch.Tensor:
        """Logits `[T, vocab]` of hidden states whose rows belong to these segments; meant for few rows."""
        found = None if self.decoder is None else self.decoder.logits(hidden, segments)
        return head_logits(self.unembed_weight, hidden, segments) if found is None else found


class AutogradPass:
    """A forward pass through transformers' own layers, which autograd differentiates."""

    def __init__(self, base: BaseModel, plan: Plan, out: torch.Tensor) -> None:
        self.base, self.plan, self.out = base, plan, out
        self.hidden = out.detach()

    def backward(self, dhidden: torch.Tensor) -> None:
        """Add the adapters' gradients to the plan's buffers, given that of the hidden states."""
        self.base.slot.plan = self.plan
        try:
            self.out.backward(dhidden)
        finally:
            self.base.slot.plan = None


def _eos_ids(model: nn.Module) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = model.config.eos_token_id
    if found is None:
        return ()
    return tuple(int(i) for i in found) if isinstance(found, (list, tuple)) else (int(found),)
