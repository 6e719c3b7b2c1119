"""How a training run is done: the options of `tinkex train`, and what of them a resumed run may change."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from .main import Parser
from .output import UsageError

__all__ = ["Settings", "add_settings", "at_least", "given_settings"]

Schedule = Literal["linear", "cosine", "constant"]
_FIXED = (
    "data", "model_name", "lora_rank", "batch_size", "seed", "train_on", "max_length", "eval_file",
    "eval_split", "load_checkpoint_path",
)  # fmt: skip
"""What a run cannot change on its way."""


@dataclass(frozen=True)
class Settings:
    """One training run; the names are those tinker-cookbook writes into a run's `config.json`."""

    data: str = ""
    model_name: str = ""
    load_checkpoint_path: str | None = None
    lora_rank: int = 32
    learning_rate: float = 2e-4
    lr_schedule: Schedule = "linear"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    num_epochs: int = 1
    batch_size: int = 32
    max_steps: int | None = None
    max_length: int | None = None
    train_on: Literal["all", "last"] = "all"
    eval_file: str | None = None
    eval_split: float | None = None
    eval_every: int = 10
    save_every: int = 20
    ttl_seconds: int | None = None
    seed: int = 0

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, the first being 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / (self.warmup_steps + 1)
        if self.lr_schedule == "constant":
            return self.learning_rate
        done = (step - self.warmup_steps) / max(total - self.warmup_steps, 1)
        if self.lr_schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * done)) / 2
        return self.learning_rate * (1 - done)

    def changed(self, given: dict[str, Any]) -> Settings:
        """These settings with what a resumed run was given; what it cannot change is refused."""
        for name in _FIXED:
            if name in given and given[name] != getattr(self, name):
                raise UsageError(
                    f"a run that is resumed keeps its {name.replace('_', ' ')} ({getattr(self, name)})",
                    "leave that option out, or begin a new run",
                )
        return replace(self, **given)

    def dumped(self) -> dict[str, Any]:
        """The settings as plain data."""
        return asdict(self)

    @classmethod
    def read(cls, config: dict[str, Any]) -> Settings:
        """The settings in a run's `config.json`; keys that mean nothing here are passed over."""
        return cls(**{each.name: config[each.name] for each in fields(cls) if each.name in config})


def at_least(least: float, kind: type[int] | type[float]) -> Any:
    """What reads an argument that is a number from `least` on."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = least - 1
        if not least <= value < math.inf:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {least:g}")
        return value

    return read


def add_settings(parser: Parser) -> None:
    """The options; those not given are left out, so that a resumed run keeps its own."""
    usual = Settings()
    whole, number = at_least(1, int), at_least(0, float)
    some = at_least(0, int)

    def add(option: str, name: str, metavar: str, kind: Any, does: str, **more: Any) -> None:
        default = getattr(usual, name)
        shown = "" if default is None or default == "" else f" [{default}]"
        parser.add_argument(option, dest=name, metavar=metavar, type=kind, default=argparse.SUPPRESS,
                            help=does + shown, **more)  # fmt: skip

    add("--model", "model_name", "NAME", str, "the base model (default: the only one the server has)")
    add("--checkpoint", "load_checkpoint_path", "PATH", str, "begin with the weights of a checkpoint")
    add("--rank", "lora_rank", "N", whole, "the adapter's rank")
    add("--learning-rate", "learning_rate", "RATE", number, "the highest learning rate")
    add(
        "--schedule",
        "lr_schedule",
        "linear|cosine|constant",
        str,
        "how the learning rate goes down",
        choices=_SCHEDULES,
    )
    add("--warmup-steps", "warmup_steps", "N", some, "in which the learning rate goes up first")
    add("--weight-decay", "weight_decay", "X", number, "of AdamW")
    add("--grad-clip-norm", "grad_clip_norm", "X", number, "the largest gradient, 0 for any")
    add("--epochs", "num_epochs", "N", whole, "how often all conversations are gone through")
    add("--batch-size", "batch_size", "N", whole, "conversations a step")
    add("--max-steps", "max_steps", "N", whole, "stop after so many")
    add(
        "--max-length",
        "max_length",
        "TOKENS",
        whole,
        "cut conversations there (default: the model's context)",
    )
    add(
        "--train-on",
        "train_on",
        "all|last",
        str,
        "which of the assistant's messages",
        choices=("all", "last"),
    )
    add("--eval", "eval_file", "FILE", str, "conversations to measure on")
    add(
        "--eval-split",
        "eval_split",
        "SHARE",
        number,
        "hold out a share (0.1) or a number (50) to measure on",
    )
    add("--eval-every", "eval_every", "STEPS", some, "measure so often; 0: only before and after")
    add("--save-every", "save_every", "STEPS", some, "save so often; 0: only at the end")
    add("--ttl", "ttl_seconds", "SECONDS", whole, "when checkpoints expire (default: never)")
    add("--seed", "seed", "N", int, "of the adapter, the order and the split")


_SCHEDULES = ("linear", "cosine", "constant")


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given."""
    names = {each.name for each in fields(Settings)}
    given = {name: value for name, value in vars(arguments).items() if name in names and value is not None}
    if given.get("eval_file") and given.get("eval_split"):
        raise UsageError("--eval and --eval-split are one too many", "see `tinkex train --help`")
    return given
