"""Train nano for a fixed time: text and chats mixed, sums rationed so that accuracy stays near a goal."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as functional
from evaluate import sum_accuracy
from model import Decoder
from rows import Marks, answers
from tokenizers import Tokenizer
from torch import Tensor

Say = Callable[[str], None]


@dataclass
class Options:
    """What can be turned in a run."""

    seconds: float = 240.0
    rate: float = 3e-3
    decay_from: float = 0.55
    weight_decay: float = 0.1
    pack_rows: int = 32
    short_rows: int = 768
    long_rows: int = 128
    sum_goal: float = 0.47
    sum_share: float = 0.02
    sum_most: float = 0.12
    sum_gain: float = 0.5
    sum_ramp: float = 0.55
    check_seconds: float = 2.0
    save_seconds: float = 45.0
    keep_at: tuple[float, ...] = (0.7, 0.8, 0.9)
    most_steps: int = 10**9
    compile: bool = False


class Rows:
    """Token rows on the device, drawn in shuffled order again and again."""

    def __init__(self, ids: np.ndarray, marks: Marks | None, device: torch.device, seed: int):
        self.ids = torch.from_numpy(ids.astype(np.int32)).to(device)
        # Without marks the rows are plain text and every token counts.
        known = np.ones(ids.shape, dtype=bool) if marks is None else answers(ids, marks)
        self.answers = torch.from_numpy(known).to(device)
        self.fill = None if marks is None else marks.end_of_text
        self.generator = torch.Generator(device).manual_seed(seed)
        self.order, self.at, self.rounds = self.shuffled(), 0, 0

    def shuffled(self) -> Tensor:
        """A fresh order of all rows."""
        return torch.randperm(len(self.ids), generator=self.generator, device=self.ids.device)

    def draw(self, count: int) -> Tensor:
        """Indices of the next rows."""
        taken = []
        while count > 0:
            part = self.order[self.at : self.at + count]
            taken.append(part)
            count -= len(part)
            self.at += len(part)
            if self.at >= len(self.order):
                self.order, self.at, self.rounds = self.shuffled(), 0, self.rounds + 1
        return torch.cat(taken)

    def batch(self, count: int, prompt_weight: float) -> tuple[Tensor, Tensor]:
        """Ids and the weight of every token: 1 in answers, `prompt_weight` elsewhere, 0 on filling."""
        index = self.draw(count)
        ids, weights = self.ids[index].long(), self.answers[index].float()
        if self.fill is not None:
            weights = torch.where((weights == 0) & (ids != self.fill), prompt_weight, weights)
        return ids, weights


@dataclass
class Streams:
    """What the model reads: packed text, short chats, sums, longer conversations, stories in chats."""

    pack: Rows
    short: Rows
    sums: Rows
    joined: Rows
    tales: Rows


@dataclass
class Run:
    """What happened, for eval.json."""

    history: list[dict] = field(default_factory=list)
    checkpoints: list[dict] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0


def join(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Several batches of one length as one."""
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])


def mean_loss(model: Decoder, ids: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean of the next-token loss."""
    logits = model(ids[:, :-1])
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum().clamp(min=1.0)


def rate_at(progress: float, options: Options) -> float:
    """Warm up, hold, then fall along a half cosine to a fiftieth."""
    warm = min(1.0, progress / 0.02 + 0.02)
    if progress < options.decay_from:
        return options.rate * warm
    fall = min(1.0, (progress - options.decay_from) / (1 - options.decay_from))
    return options.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * fall)))


def share_of_sums(progress: float, accuracy: float, options: Options) -> float:
    """The share of sums among short rows: more when accuracy is behind its ramp to the goal, none ahead."""
    goal = options.sum_goal * min(1.0, progress / options.sum_ramp)
    return min(options.sum_most, max(0.0, options.sum_share + options.sum_gain * (goal - accuracy)))


def make_optimizer(model: Decoder, options: Options, device: torch.device) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    scales = [p for p in model.parameters() if p.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": scales, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95), fused=device.type == "cuda")


def batches_of(streams: Streams, options: Options, progress: float, share: float) -> list[tuple]:
    """The weighted batches of one step; chats grow as training goes on."""
    later = progress >= options.decay_from
    prompt_weight = 0.05 if later else 0.2
    sum_rows = round(share * options.short_rows)
    short = [streams.short.batch(options.short_rows - sum_rows, prompt_weight)]
    if sum_rows:
        short.append(streams.sums.batch(sum_rows, prompt_weight))
    half = options.long_rows // 2
    longer = [
        streams.joined.batch(half, prompt_weight),
        streams.tales.batch(options.long_rows - half, prompt_weight),
    ]
    weights = (0.2, 0.45, 0.35) if later else (0.45, 0.3, 0.25)
    return list(
        zip(weights, (streams.pack.batch(options.pack_rows, 1.0), join(short), join(longer)), strict=True)
    )


def train(
    model: Decoder,
    streams: Streams,
    tokenizer: Tokenizer,
    options: Options,
    say: Say,
    save: Callable[[str], None],
) -> Run:
    """Train until the time is over; `save` is called with a name for every checkpoint."""
    device = model.embed.weight.device
    optimizer = make_optimizer(model, options, device)
    run, began = Run(), time.monotonic()
    checked = saved = said = began
    accuracy, smooth, keep = 0.0, 0.0, list(options.keep_at)
    if options.compile:
        for block in model.blocks:
            block.compile()
    while run.steps < options.most_steps:
        now = time.monotonic()
        progress = (now - began) / options.seconds
        if options.most_steps < 10**9:
            progress = max(progress, run.steps / options.most_steps)
        if progress >= 1.0:
            break
        share = share_of_sums(progress, smooth, options)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(progress, options)
        losses = []
        for weight, (ids, weights) in batches_of(streams, options, progress, share):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                try:
                    loss = mean_loss(model, ids, weights)
                    (weight * loss).backward()
                except Exception as error:
                    if not options.compile or run.steps:
                        raise
                    say(f"compile failed ({type(error).__name__}), going on without it")
                    options.compile = False
                    for block in model.blocks:
                        block._compiled_call_impl = None
                    loss = mean_loss(model, ids, weights)
                    (weight * loss).backward()
            losses.append(loss.detach())
            run.tokens += ids.numel()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.steps += 1
        if now - checked >= options.check_seconds:
            accuracy = sum_accuracy(model, tokenizer, 1.0)
            smooth = accuracy if not run.history else 0.5 * smooth + 0.5 * accuracy
            checked = time.monotonic()
            values = [round(float(x), 4) for x in losses]
            run.history.append(
                {
                    "seconds": round(now - began, 1),
                    "step": run.steps,
                    "loss": dict(zip(("text", "short", "long"), values, strict=True)),
                    "sums": round(accuracy, 4),
                    "share": round(share, 4),
                }
            )
            if now - said >= 4 * options.check_seconds:
                said = now
                speed = run.tokens / (time.monotonic() - began)
                say(
                    f"step {run.steps} {progress:.0%} loss text {values[0]:.3f} short {values[1]:.3f} "
                    f"long {values[2]:.3f} sums {accuracy:.2f} share {share:.3f} {speed / 1e6:.3f}M tok/s"
                )
        if keep and progress >= keep[0]:
            name = f"{keep.pop(0):.0%}".rstrip("%")
            figures = {"name": name, "step": run.steps, "sampled": sum_accuracy(model, tokenizer, 1.0, 2)}
            figures["greedy"] = sum_accuracy(model, tokenizer, 0.0)
            run.checkpoints.append(figures)
            say(f"checkpoint {figures}")
            save(name)
        if now - saved >= options.save_seconds:
            saved = now
            save("")
    return run
