"""`tinkex bench`: how fast a server trains and samples, measured from here in half a minute or less."""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING, Any

from .main import Parser
from .output import CommandError, Output
from .progress import ProgressLine
from .reaching import add_server, service
from .training_settings import at_least
from .weights import find_model

if TYPE_CHECKING:
    from ..client.service import ServiceClient
    from ..types.datum import Datum

_SHAPE = {
    "model": "text",
    "base_url": "text",
    "request_seconds": "number",
    "train": {
        "tokens_per_second": "number",
        "step_seconds": "number",
        "steps": "int",
        "batch_size": "int",
        "length": "int",
        "rank": "int",
    },
    "sample": {
        "tokens_per_second": "number",
        "samples": "int",
        "max_tokens": "int",
        "first_token_seconds": "number",
        "alone_tokens_per_second": "number",
    },
}
_TOKENS = range(16, 240)  # every vocabulary has these
_REQUESTS = 20


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    whole = at_least(1, int)
    parser.add_argument(
        "--model", metavar="NAME", help="a base model (default: the only one the server has)"
    )
    for option, usual, does in (
        ("--rank", 32, "of the adapter that is trained"),
        ("--steps", 8, "to train"),
        ("--batch-size", 8, "examples a step"),
        ("--length", 256, "tokens of an example and of a prompt"),
        ("--samples", 16, "at a time"),
        ("--max-tokens", 64, "of a sample"),
    ):
        parser.add_argument(option, metavar="N", type=whole, default=usual, help=f"{does} [{usual}]")
    add_server(parser)
    parser.command(
        _bench, _SHAPE, examples="tinkex bench --model nano\ntinkex bench --steps 20 --samples 64 --json"
    )


def _bench(arguments: argparse.Namespace, out: Output) -> int:
    with service(arguments, out) as client, ProgressLine(out) as line:
        name, context = find_model(client, arguments.model)
        length = arguments.length
        if context is not None:
            length = min(length, context - arguments.max_tokens)
        if length < 2:
            raise CommandError(
                f"a context of {context} has no room for {arguments.max_tokens} tokens and a prompt"
            )
        line.show("asking …", now=True)
        requests = _requests(client)
        line.show("training …", now=True)
        trained = _train(client, name, arguments, length)
        line.show("sampling …", now=True)
        sampled = _sample(client, name, arguments, length)
        where = client.config.base_url
    data = {
        "model": name,
        "base_url": where,
        "request_seconds": requests,
        "train": trained,
        "sample": sampled,
    }
    step, first = trained["step_seconds"] * 1000, sampled["first_token_seconds"] * 1000
    alone = sampled["alone_tokens_per_second"]
    text = f"""{name} at {where}
  request   {requests * 1000:,.1f} ms
  training  {trained["tokens_per_second"]:,.0f} tokens/s  ({trained["batch_size"]} × {length} tokens in \
{step:,.0f} ms a step, rank {trained["rank"]})
  sampling  {sampled["tokens_per_second"]:,.0f} tokens/s  ({sampled["samples"]} at a time)
            {alone:,.0f} tokens/s alone, the first token after {first:,.0f} ms"""
    essential = f"{trained['tokens_per_second']} {sampled['tokens_per_second']}"
    out.record({"rates": essential}, essential="rates", text=text, data=data)
    return 0


def _requests(client: ServiceClient) -> float:
    """The median time of a request that does nothing."""
    times = []
    for _ in range(_REQUESTS):
        began = time.perf_counter()
        client.get_server_capabilities()
        times.append(time.perf_counter() - began)
    return round(sorted(times)[_REQUESTS // 2], 6)


def _examples(count: int, length: int) -> list[Datum]:
    from ..types.datum import Datum
    from ..types.model_input import ModelInput

    draw = random.Random(0)  # noqa: S311
    made = []
    for _ in range(count):
        tokens = draw.choices(_TOKENS, k=length + 1)
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * length}
        made.append(Datum(ModelInput.from_ints(tokens[:-1]), inputs))
    return made


def _train(client: ServiceClient, name: str, arguments: argparse.Namespace, length: int) -> dict[str, Any]:
    from ..types.optimizer import AdamParams

    trainer = client.create_lora_training_client(
        name, rank=arguments.rank, user_metadata={"created_by": "tinkex bench"}
    )
    data = _examples(arguments.batch_size, length)

    def step() -> Any:
        trainer.forward_backward(data, "cross_entropy")
        return trainer.optim_step(AdamParams(learning_rate=1e-4))

    step().result()  # the first one warms up
    began = time.perf_counter()
    for last in [step() for _ in range(arguments.steps)]:
        last.result()
    seconds = time.perf_counter() - began
    return {
        "tokens_per_second": round(arguments.steps * arguments.batch_size * length / seconds, 1),
        "step_seconds": round(seconds / arguments.steps, 6),
        "steps": arguments.steps,
        "batch_size": arguments.batch_size,
        "length": length,
        "rank": arguments.rank,
    }


def _sample(client: ServiceClient, name: str, arguments: argparse.Namespace, length: int) -> dict[str, Any]:
    from ..types.sampling import SamplingParams

    sampler = client.create_sampling_client(base_model=name)
    prompts = [example.model_input for example in _examples(arguments.samples + 1, length)]
    params = SamplingParams(max_tokens=arguments.max_tokens, stop=[])  # to the last token
    sampler.sample(prompts[0], 1, SamplingParams(max_tokens=2, stop=[])).result()
    began = time.perf_counter()
    first, count = 0.0, 0
    for item in sampler.sample_stream(prompts[0], params):
        first = first or time.perf_counter() - began
        count += len(item.tokens)
    alone = count / (time.perf_counter() - began)
    began = time.perf_counter()
    tokens = 0
    for future in [sampler.sample(prompt, 1, params) for prompt in prompts[1:]]:
        tokens += sum(len(each.tokens) for each in future.result().sequences)
    seconds = time.perf_counter() - began
    return {
        "tokens_per_second": round(tokens / seconds, 1),
        "samples": arguments.samples,
        "max_tokens": arguments.max_tokens,
        "first_token_seconds": round(first, 6),
        "alone_tokens_per_second": round(alone, 1),
    }
