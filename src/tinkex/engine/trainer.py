"""Forward and backward passes of several models as one, and their optimizer steps.

Each part of a joined pass succeeds or fails alone: its gradient is collected apart and joins the model's
own only when everything about the part is finite. Nothing here knows of files, queues or names.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from .adamw import AdamParams, AdamState, global_norm, take_step
from .adapters import Adapter, LoraTensors
from .base_model import BaseModel
from .custom_graph import CustomLoss
from .datums import PartData, lay_out
from .faults import EngineFault, ServerFault, UserFault
from .kill_points import reach
from .logprobs import Rows
from .lora import evenness
from .losses import ANY_LOSS, Loss, by_sequence, find_loss
from .messages import PartFailure, PartResult, TrainPart
from .packed_attention import packed_attention
from .packing import Run, micro_batches
from .plan import Plan, Segment
from .workspace import Workspace

log = logging.getLogger(__name__)
TOKEN_BUDGET = {"cpu": 1024, "cuda": 16384}
"""Tokens of a micro-batch, by device; those of very small models on a CPU are larger."""
SMALL_BATCH = 1 << 17
"""Hidden values below which a micro-batch on a CPU costs more in calls than in arithmetic."""


@dataclass(slots=True)
class TrainState:
    """What training one model holds: its adapter, accumulated gradient and optimizer moments."""

    adapter: Adapter
    moments: AdamState | None = None
    grads: LoraTensors | None = None
    spare: LoraTensors | None = None
    """A buffer no longer needed, for the next gradient."""
    grad_norm: float | None = None
    """The norm of `grads`, where it is known."""

    @property
    def steps(self) -> int:
        """Optimizer steps taken."""
        return 0 if self.moments is None else self.moments.step

    def move(self, device: torch.device | str) -> None:
        """Bring everything to a device."""
        self.adapter.move(device)
        if self.moments is not None:
            self.moments.move(device)
        if self.grads is not None:
            self.grads = self.grads.like(self.grads.flat.to(device))
        self.spare = None

    def blank_grads(self) -> LoraTensors:
        """A gradient buffer of zeros."""
        found, self.spare = self.spare, None
        if found is not None:
            found.flat.zero_()
            return found
        adapter = self.adapter
        weights = adapter.master.flat
        return LoraTensors.zeros(adapter.layout, adapter.rank, weights.device, weights.dtype)

    def nbytes(self) -> int:
        """Bytes held."""
        moments: int = 0 if self.moments is None else 2 * self.moments.exp_avg.nbytes
        buffers: list[int] = [x.flat.nbytes for x in (self.grads, self.spare) if x is not None]
        return self.adapter.nbytes() + moments + sum(buffers)


@dataclass(slots=True)
class _Part:
    state: TrainState
    data: PartData
    loss: Loss | CustomLoss
    settings: dict[str, float]
    backward: bool
    grads: LoraTensors | None = None
    logprobs: list[torch.Tensor] = field(default_factory=list)
    sums: list[torch.Tensor] = field(default_factory=list)
    metrics: list[dict[str, torch.Tensor]] = field(default_factory=list)
    fault: EngineFault | None = None

    @property
    def computed(self) -> bool:
        """Whether there is anything to read."""
        return self.fault is None or bool(self.logprobs)

    def forget(self) -> None:
        """Go back to before the pass."""
        if self.grads is not None:
            self.grads.flat.zero_()
        self.logprobs, self.sums, self.metrics, self.fault = [], [], [], None


class _Read(NamedTuple):
    logprobs: np.ndarray[Any, Any]
    total: float
    norm: float


class Trainer:
    """Runs passes and optimizer steps on one base model."""

    def __init__(
        self,
        base: BaseModel,
        *,
        token_budget: int | None = None,
        checkpoint_activations: bool = False,
        deterministic: bool = False,
        chunk_rows: int | None = None,
    ) -> None:
        self.base = base
        self.head = base.target_head(chunk_rows)
        kind = base.device.type
        budget = TOKEN_BUDGET.get(kind, TOKEN_BUDGET["cpu"])
        if kind == "cpu":
            budget = max(budget, SMALL_BATCH // base.hidden_size)
        self.token_budget = token_budget or budget
        self.checkpoint_activations = checkpoint_activations
        self.deterministic = deterministic
        wide = base.dtype in (torch.float32, torch.float64)
        self.room = Workspace() if base.by_hand and wide and not checkpoint_activations else None

    def run(self, parts: Sequence[tuple[TrainState, TrainPart]]) -> list[PartResult | PartFailure]:
        """One joined pass; answers in the order of the parts, each a result or its own failure."""
        work = self.by_micro_batch(parts)
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: list[PartResult | PartFailure] = end.value
                return found

    def by_micro_batch(
        self, parts: Sequence[tuple[TrainState, TrainPart]]
    ) -> Generator[None, None, list[PartResult | PartFailure]]:
        """What `run` does, giving way to other work after every micro-batch."""
        started = time.perf_counter()
        prepared = [self._prepare(state, part) for state, part in parts]
        ready = [part for part in prepared if isinstance(part, _Part)]
        # Joined, a part's products have other shapes and round otherwise: alone, its bits are its own.
        groups = [[part] for part in ready] if self.deterministic else _by_kind(ready)
        elapsed = time.perf_counter() - started
        for group in groups:
            elapsed += yield from self._group(group)
        found = iter(self._read([part for part in ready if part.computed]))
        return [
            _failure(part)
            if isinstance(part, EngineFault)
            else self._finish(part, next(found) if part.computed else None, elapsed)
            for part in prepared
        ]

    def _group(self, group: list[_Part]) -> Generator[None, None, float]:
        """Run the micro-batches of parts that share passes; the seconds it took.

        Where memory does not suffice all is begun again with half the tokens a micro-batch; with one datum
        at a time it is given up.
        """
        elapsed, budget = 0.0, self.token_budget
        while True:
            batches = micro_batches([part.data.lengths for part in group], budget)
            try:
                for batch in batches:
                    started = time.perf_counter()
                    with torch.inference_mode(self.base.by_hand):
                        self._micro_batch(group, batch)
                    elapsed += time.perf_counter() - started
                    reach("engine: in a pass")
                    yield
                return elapsed
            except torch.OutOfMemoryError as error:
                shortage = str(error).splitlines()[0]
            for part in group:
                part.forget()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            longest = max(length for part in group for length in part.data.lengths)
            if budget <= longest and len(group) > 1:
                # Alone, each of them may fit; else it is the one to be told.
                for part in group:
                    elapsed += yield from self._group([part])
                return elapsed
            if budget <= longest:
                fault = UserFault(
                    f"a sequence of {longest} tokens does not fit the device's memory; give shorter ones, "
                    f"or leave more memory to training ({shortage})"
                )
                for part in group:
                    part.fault = fault
                return elapsed
            budget = max(budget // 2, longest)
            log.warning("out of memory in a pass; it is begun again with %d tokens at a time", budget)

    def optim_step(self, state: TrainState, values: Mapping[str, Any]) -> dict[str, float]:
        """Apply the accumulated gradient, or a zero one; the metrics of the step."""
        params = AdamParams.given(values)
        weights = state.adapter.master.flat
        grads = torch.zeros_like(weights) if state.grads is None else state.grads.flat
        norm = global_norm(grads) if state.grad_norm is None else state.grad_norm
        if not math.isfinite(norm):
            raise UserFault("the accumulated gradient is not finite; nothing was changed")
        moments = state.moments or AdamState.zeros_like(weights)
        adapter = state.adapter
        rounded = None if adapter.compute is adapter.master else adapter.compute.flat
        step = take_step(weights, grads, norm, moments, params, rounded)
        state.moments, state.grads, state.spare, state.grad_norm = moments, None, state.grads, None
        adapter.refresh(step.sound)
        return {
            "grad_norm:max": norm,
            "update_norm:max": step.change,
            "learning_rate:max": params.learning_rate,
            "step:max": float(moments.step),
        }

    def _prepare(self, state: TrainState, part: TrainPart) -> _Part | EngineFault:
        try:
            custom = CustomLoss.from_config(part.config) if part.loss == "custom" else None
            loss = ANY_LOSS if custom is not None else find_loss(part.loss)
            settings = {} if custom is not None else loss.with_settings(part.config)
            data = lay_out(
                part.data,
                needs=loss.needs,
                allows=loss.allows,
                defaults=loss.defaults,
                live=loss.live,
                vocab_size=self.base.vocab_size,
                context_length=self.base.context_length,
                device=self.base.device,
                dtype=self.head.wide,
            )
            if custom is not None:
                custom = custom.bind(part.data, self.base.device, self.head.wide)
        except EngineFault as fault:
            return fault
        except Exception as error:  # other parts of the pass are not to blame
            log.exception("a part of a pass could not be laid out")
            return ServerFault(f"{type(error).__name__}: {error}")
        grads = None if part.forward_only else state.blank_grads()
        return _Part(state, data, custom or loss, settings, not part.forward_only, grads)

    def _micro_batch(self, parts: list[_Part], batch: list[Run]) -> None:
        backward = parts[0].backward
        segments: list[Segment] = []
        bounds = [0]
        for run in batch:
            part = parts[run.part]
            size = part.data.starts[run.end] - part.data.starts[run.first]
            segments.append(Segment(part.state.adapter, bounds[-1], bounds[-1] + size, part.grads))
            for length in part.data.lengths[run.first : run.end]:
                bounds.append(bounds[-1] + length)
        plan = Plan(
            packed_attention,
            tuple(segments),
            tuple(bounds),
            anchor=torch.zeros((), device=self.base.device, requires_grad=True) if backward else None,
            checkpoint=self.checkpoint_activations,
            fold=self.base.foldable and all(s.end - s.start >= self.base.hidden_size for s in segments),
            room=self.room if backward else None,
        )
        spans = [_rows(parts[run.part].data, run) for run in batch]
        tokens = _joined([parts[r.part].data.tokens_t[s] for r, s in zip(batch, spans, strict=True)])
        positions = _joined([parts[r.part].data.positions_t[s] for r, s in zip(batch, spans, strict=True)])
        row = (tokens.unsqueeze(0), positions.unsqueeze(0), plan)
        step = self.base.training_pass(*row) if backward else None
        values = self.base.hidden_states(*row) if step is None else step.hidden
        dhidden = plan.place("dhidden", values.shape, values) if backward else None
        for run, segment, span in zip(batch, segments, spans, strict=True):
            here = slice(segment.start, segment.end)
            part = parts[run.part]
            targets = part.data.targets_tk[span]
            rows = Rows(values[here], targets, part.state.adapter, part.grads, plan.fold)
            self._score(part, run, span, rows, None if dhidden is None else dhidden[here])
        if step is not None:
            step.backward(dhidden)

    def _score(self, part: _Part, run: Run, span: slice, rows: Rows, dhidden: torch.Tensor | None) -> None:
        inputs = {name: x[span] for name, x in part.data.inputs_tk.items()}
        loss = part.loss
        if isinstance(loss, Loss) and not loss.by_sequence and dhidden is not None:
            part.logprobs.append(self._one_sweep(part, loss, rows, inputs, span, dhidden))
            return
        lp, lse = self.head.score(rows)
        part.logprobs.append(lp)
        if isinstance(loss, CustomLoss):
            try:
                value, slope, metrics = loss.run(lp, part.data, run)
            except EngineFault as fault:
                part.fault = part.fault or fault
                value, slope, metrics = lp.new_zeros(()), torch.zeros_like(lp), []
            part.metrics += metrics
        elif loss.by_sequence:
            lengths = part.data.lengths[run.first : run.end]
            value, slope = by_sequence(loss, lp, inputs, part.settings, lengths)
        else:
            value, slope = loss.run(lp, inputs, part.settings)
        part.sums.append(value.sum())
        if dhidden is not None:
            self.head.backward(rows, lse, slope, dhidden)

    def _one_sweep(
        self,
        part: _Part,
        loss: Loss,
        rows: Rows,
        inputs: dict[str, torch.Tensor],
        span: slice,
        dhidden: torch.Tensor,
    ) -> torch.Tensor:
        live = part.data.live_t
        chosen = None if live is None else live[span]
        if chosen is None or chosen.mean() > 0.9:
            return self._sweep(part, loss, rows, inputs, dhidden)
        # Tokens that add nothing to the loss are scored without a backward pass.
        device = rows.hidden_tc.device
        on = torch.from_numpy(np.flatnonzero(chosen)).to(device)
        off = torch.from_numpy(np.flatnonzero(~chosen)).to(device)
        lp = torch.empty(rows.targets_tk.shape, dtype=self.head.wide, device=device)
        dhidden.zero_()
        if len(on):
            some = rows._replace(hidden_tc=rows.hidden_tc[on], targets_tk=rows.targets_tk[on])
            picked = {name: x[on] for name, x in inputs.items()}
            dsome = torch.empty_like(some.hidden_tc)
            lp[on] = self._sweep(part, loss, some, picked, dsome)
            dhidden[on] = dsome
        rest = rows._replace(hidden_tc=rows.hidden_tc[off], targets_tk=rows.targets_tk[off])
        lp[off] = self.head.score(rest)[0]
        return lp

    def _sweep(
        self,
        part: _Part,
        loss: Loss,
        rows: Rows,
        inputs: dict[str, torch.Tensor],
        dhidden: torch.Tensor,
    ) -> torch.Tensor:
        def slope(lp: torch.Tensor, at: slice) -> torch.Tensor:
            value, derivative = loss.run(lp, {name: x[at] for name, x in inputs.items()}, part.settings)
            part.sums.append(value.sum())
            return derivative

        return self.head.score_and_backward(rows, slope, dhidden)

    def _read(self, parts: list[_Part]) -> list[_Read]:
        """Bring to the host what was computed for some parts, waiting for the device once."""
        dtype = _total_dtype(self.base.device)
        logprobs = [_joined(part.logprobs) for part in parts]
        numbers = []
        for part in parts:
            sums = torch.stack(part.sums) if part.sums else torch.zeros(1, device=self.base.device)
            numbers.append(sums.sum(dtype=dtype))
            if part.grads is not None:
                numbers.append(torch.linalg.vector_norm(part.grads.flat).to(dtype))
        if self.base.device.type != "cpu" and parts:
            shapes = [lp.shape for lp in logprobs]
            flat = torch.cat([lp.flatten() for lp in logprobs]).cpu()
            pieces = flat.split([shape.numel() for shape in shapes])
            logprobs = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
            values = iter(torch.stack(numbers).tolist())
        else:
            values = iter([float(number) for number in numbers])
        found = []
        for part, lp in zip(parts, logprobs, strict=True):
            total, norm = next(values), 0.0
            if part.grads is not None:
                norm = next(values)
                if math.isinf(norm):
                    norm = global_norm(part.grads.flat)
            found.append(_Read(lp.cpu().numpy().astype(np.float32, copy=False), total, norm))
        return found

    def _finish(self, part: _Part, read: _Read | None, elapsed: float) -> PartResult | PartFailure:
        if read is None:
            assert part.fault is not None
            part.state.spare = part.grads
            return _failure(part.fault)
        lp, total, norm = read
        fault = part.fault or _not_finite(part, lp, total, norm)
        state = part.state
        state.adapter.folded.clear()
        if fault is not None:
            state.spare = part.grads
            return _failure(fault)
        if part.grads is not None:
            if state.grads is None:
                state.grads, state.grad_norm = part.grads, norm
            else:
                state.grads.flat.add_(part.grads.flat)
                state.spare, state.grad_norm = part.grads, None
        outputs = []
        for i, shape in enumerate(part.data.shapes):
            rows = lp[part.data.starts[i] : part.data.starts[i + 1]]
            outputs.append({"logprobs": rows[:, 0] if len(shape) == 1 else rows[:, : shape[1]]})
        metrics = {"loss:sum": total, "tokens:sum": float(part.data.total), "time_s:max": elapsed}
        if part.grads is not None:
            metrics["grad_norm:max"] = norm
        return PartResult(tuple(outputs), metrics | CustomLoss.reduced(part.metrics))


def _by_kind(parts: list[_Part]) -> list[list[_Part]]:
    # In the order in which adapters lie side by side, neighbours' ranks are neighbours too.
    ordered = sorted(parts, key=lambda part: -evenness(part.state.adapter.rank))
    groups = [[p for p in ordered if p.backward], [p for p in ordered if not p.backward]]
    return [group for group in groups if group]


def _rows(data: PartData, run: Run) -> slice:
    return slice(data.starts[run.first], data.starts[run.end])


def _joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _total_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _not_finite(part: _Part, lp: np.ndarray[Any, Any], total: float, norm: float) -> EngineFault | None:
    if not np.isfinite(lp).all():
        if part.state.steps == 0:
            return ServerFault("the model's logprobs are not finite before any training step")
        return UserFault("the model's logprobs are not finite: its weights have diverged")
    if not math.isfinite(total):
        return UserFault("the loss is not finite: its inputs are too large or too far from the model's")
    if not math.isfinite(norm):
        return UserFault("the gradient is not finite: the loss's inputs are too large")
    return None


def _failure(fault: EngineFault) -> PartFailure:
    return PartFailure(fault.category, str(fault))
