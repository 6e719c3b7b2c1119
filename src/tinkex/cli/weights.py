"""Which weights a command samples from: a base model or a checkpoint, named by options or by a word."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .main import Parser
from .output import CommandError, UsageError
from .paths import parse_path

if TYPE_CHECKING:
    from ..client.sampling import SamplingClient
    from ..client.service import ServiceClient
    from ..types.sampling import SamplingParams
    from .chats import ChatFormat

__all__ = ["Weights", "add_sampling", "add_weights", "find_model", "open_weights", "wanted_weights"]

_SCHEME = "tinker://"


@dataclass(frozen=True)
class Weights:
    """Weights that can be sampled from."""

    name: str
    base_model: str
    context: int | None
    sampler: SamplingClient

    def room(self, prompt: int, wanted: int | None, usual: int) -> int:
        """How many tokens to ask for: those wanted, else the usual number as far as the context goes."""
        if wanted is not None:
            return wanted
        left = usual if self.context is None else self.context - prompt
        if left < 1:
            raise CommandError(
                f"the prompt's {prompt:,} tokens leave no room in a context of {self.context:,}"
            )
        return min(usual, left)


# ---- options


def add_weights(parser: Parser) -> None:
    """The options that name the weights."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--model", metavar="NAME", help="a base model (default: the only one the server has)"
    )
    which.add_argument("--checkpoint", metavar="PATH", help="a checkpoint, tinker://…")


def add_sampling(parser: Parser, *, temperature: float, usual: int) -> None:
    """The options that say how to sample."""
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "--max-tokens", metavar="N", type=int, help=f"how many at most [{usual}, or what fits]"
    )
    group.add_argument(
        "--temperature",
        metavar="T",
        type=float,
        default=temperature,
        help=f"0 takes the likeliest token [{temperature:g}]",
    )
    group.add_argument(
        "--top-p",
        metavar="P",
        type=float,
        default=1.0,
        help="from the likeliest tokens that make up this share [1]",
    )
    group.add_argument(
        "--top-k", metavar="K", type=int, default=-1, help="from the K likeliest tokens [all]"
    )
    group.add_argument("--seed", metavar="N", type=int, help="the same seed, the same samples")
    group.add_argument(
        "--stop",
        metavar="TEXT",
        action="append",
        help="end where this text appears; may be given several times",
    )


def sampling_params(
    arguments: argparse.Namespace, max_tokens: int, chats: ChatFormat | None = None
) -> SamplingParams:
    """How to sample, as the options say; an answer in a chat ends with its turn in any case."""
    from ..types.sampling import SamplingParams

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        seed=arguments.seed,
        stop=arguments.stop if chats is None else chats.stops(arguments.stop or ()),
    )


# ---- from a name to a client


def wanted_weights(arguments: argparse.Namespace) -> str | None:
    """The word that names the weights, if there is one."""
    word: str | None = arguments.checkpoint or arguments.model
    if arguments.checkpoint is not None:
        parse_path(arguments.checkpoint)
    return word


def find_model(client: ServiceClient, name: str | None) -> tuple[str, int | None]:
    """A base model of the server and its context; without a name the only one it has."""
    offered = {one.model_name: one for one in client.get_server_capabilities().supported_models}
    known = ", ".join(sorted(filter(None, offered)))
    if name is None:
        if len(offered) != 1:
            raise UsageError(f"which model? The server has {known}", "say --model NAME")
        (name,) = offered
    if name is None or name not in offered:
        raise CommandError(
            f"the server has no model {name!r}; it has {known}", "`tinkex model list` shows more"
        )
    return name, offered[name].max_context_length


def open_weights(client: ServiceClient, word: str | None) -> Weights:
    """Weights by a base model's name or a checkpoint's path; those of a training run too."""
    if word is None or not word.startswith(_SCHEME):
        name, context = find_model(client, word)
        return Weights(name, name, context, client.create_sampling_client(base_model=name))
    path = parse_path(word)
    if path.checkpoint_type == "external":
        raise CommandError(
            f"{word} is an export, which servers do not sample from",
            "use the run's sampler_weights or weights; `tinkex checkpoint list` shows them",
        )
    if path.checkpoint_type == "training":
        trainer = client.create_training_client_from_state(word, user_metadata={"created_by": "tinkex"})
        sampler = trainer.save_weights_and_get_sampling_client()
    else:
        sampler = client.create_sampling_client(model_path=word)
    base = sampler.get_base_model()
    return Weights(word, base, find_model(client, base)[1], sampler)
