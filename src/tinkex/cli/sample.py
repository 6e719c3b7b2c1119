"""`tinkex sample`: a prompt or many in, text or JSON out."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chats import ChatFormat
from .main import Parser
from .output import CommandError, Output, UsageError
from .progress import ProgressLine
from .reaching import add_server, service
from .shapes import SEQUENCE
from .weights import Weights, add_sampling, add_weights, open_weights, sampling_params, wanted_weights

if TYPE_CHECKING:
    from ..client.many import Sampled
    from ..types.sample_response import SampleResponse

_USUAL = 256
_SHAPE = {
    "model": "text",
    "results": [
        {
            "prompt": "text",
            "prompt_tokens": "int",
            "sequences?": [SEQUENCE],
            "prompt_logprobs?": ["number?"],
            "topk_prompt_logprobs?": "any",
            "error?": "text",
        }
    ],
    "tokens": "int",
    "seconds": "number",
    "tokens_per_second": "number",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="?", help="a text to go on from (default: from stdin)"
    )
    parser.add_argument(
        "-i", "--input", metavar="FILE", type=Path,
        help="the prompt is in a file ('-': stdin); of a .jsonl file every line is one, "
             '{"prompt": "…"} or {"messages": […]}',
    )  # fmt: skip
    add_weights(parser)
    parser.add_argument("--chat", action="store_true", help="the prompt is a message to be answered")
    parser.add_argument("--system", metavar="TEXT", help="a system message before it (with --chat)")
    parser.add_argument("-n", "--num-samples", metavar="N", type=int, default=1, help="for each prompt [1]")
    add_sampling(parser, temperature=1.0, usual=_USUAL)
    asked = parser.add_argument_group("more in the JSON")
    asked.add_argument("--logprobs", action="store_true", help="of the sampled tokens")
    asked.add_argument(
        "--topk-logprobs", metavar="K", type=int, default=0, help="of each one's alternatives"
    )
    asked.add_argument("--prompt-logprobs", action="store_true", help="of the prompt's tokens")
    asked.add_argument(
        "--topk-prompt-logprobs", metavar="K", type=int, default=0, help="of their alternatives"
    )
    parser.add_argument("--concurrency", metavar="N", type=int, default=64, help="prompts at a time [64]")
    add_server(parser)
    parser.command(
        _sample,
        _SHAPE,
        examples='tinkex sample "Once upon a time" -n 3 --max-tokens 40\n'
        'tinkex sample --chat "Why is the sky blue?" --checkpoint tinker://s-1f3a:train:0/sampler_weights/final\n'
        "tinkex sample -i prompts.jsonl --temperature 0 --json > answers.json",
    )


@dataclass(frozen=True)
class _Prompt:
    """What is sampled from: a text, or a conversation."""

    text: str
    messages: tuple[dict[str, Any], ...] = ()


# ---- what comes in


def _prompts(arguments: argparse.Namespace) -> list[_Prompt]:
    if arguments.prompt is not None and arguments.input is not None:
        raise UsageError("a prompt and an --input are one too many", "see `tinkex sample --help`")
    if arguments.prompt is not None:
        texts = [_Prompt(arguments.prompt)]
    elif arguments.input is not None and str(arguments.input) != "-":
        text = arguments.input.read_text(encoding="utf-8")
        lines = arguments.input.suffix == ".jsonl"
        texts = _lines(text, arguments.input) if lines else [_Prompt(text)]
    elif arguments.input is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", 'say tinkex sample "…", or --input FILE')
    else:
        texts = [_Prompt(sys.stdin.read())]
    if not arguments.chat:
        return texts
    start = ({"role": "system", "content": arguments.system},) if arguments.system is not None else ()
    return [
        each
        if each.messages
        else _Prompt(each.text, (*start, {"role": "user", "content": each.text.strip()}))
        for each in texts
    ]


def _lines(text: str, path: Path) -> list[_Prompt]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):  # other ends of lines may be in a text
        if not line.strip():
            continue
        try:
            held = json.loads(line)
        except ValueError as error:
            raise CommandError(f"{path}, line {number} is not JSON: {error}") from None
        if isinstance(held, dict) and isinstance(held.get("prompt"), str):
            found.append(_Prompt(held["prompt"]))
        elif isinstance(held, dict) and isinstance(held.get("messages"), list) and held["messages"]:
            found.append(_Prompt(json.dumps(held["messages"], ensure_ascii=False), tuple(held["messages"])))
        else:
            raise CommandError(f'{path}, line {number} has neither a "prompt" nor "messages"')
    if not found:
        raise CommandError(f"{path} holds no prompts")
    return found


# ---- what goes out


def _sample(arguments: argparse.Namespace, out: Output) -> int:
    prompts = _prompts(arguments)
    word = wanted_weights(arguments)
    with service(arguments, out) as client:
        weights = open_weights(client, word)
        tokenizer = weights.sampler.get_tokenizer()
        chats = ChatFormat(tokenizer) if any(each.messages for each in prompts) else None
        tokens = [_encoded(each, tokenizer, chats) for each in prompts]
        began = time.perf_counter()
        ended = _run(arguments, out, weights, tokens, chats)
        seconds = time.perf_counter() - began
    results = [
        _result(arguments, tokenizer, prompt, ids, one)
        for prompt, ids, one in zip(prompts, tokens, ended, strict=True)
    ]
    return _show(out, weights, results, seconds)


def _encoded(prompt: _Prompt, tokenizer: Any, chats: ChatFormat | None) -> list[int]:
    if prompt.messages:
        assert chats is not None
        return chats.prompt(prompt.messages)
    tokens = [int(each) for each in tokenizer.encode(prompt.text)]
    if not tokens:
        raise CommandError("the prompt is empty")
    return tokens


def _run(
    arguments: argparse.Namespace,
    out: Output,
    weights: Weights,
    prompts: Sequence[list[int]],
    chats: ChatFormat | None,
) -> list[Sampled]:
    from ..types.model_input import ModelInput
    from ..types.sampling import SampleRequest

    requests = [
        SampleRequest(
            prompt=ModelInput.from_ints(ids),
            num_samples=arguments.num_samples,
            sampling_params=sampling_params(
                arguments, weights.room(len(ids), arguments.max_tokens, _USUAL), chats
            ),
            prompt_logprobs=arguments.prompt_logprobs or arguments.topk_prompt_logprobs > 0,
            topk_prompt_logprobs=arguments.topk_prompt_logprobs,
            topk_sample_logprobs=arguments.topk_logprobs,
        )
        for ids in prompts
    ]
    found = []
    with ProgressLine(out) as line:
        many = weights.sampler.sample_many(
            requests, concurrency=arguments.concurrency, ordered=True, return_exceptions=True
        )
        for one in many:
            found.append(one)
            line.show(f"{len(found):,} of {len(requests):,} prompts")
    return found


def _result(
    arguments: argparse.Namespace, tokenizer: Any, prompt: _Prompt, ids: list[int], one: Sampled
) -> dict[str, Any]:
    result: dict[str, Any] = {"prompt": prompt.text, "prompt_tokens": len(ids)}
    if one.error is not None:
        from .advice import reason

        return {**result, "error": reason(one.error)}
    response: SampleResponse = one.result()
    result["sequences"] = []
    for sequence in response.sequences:
        made: dict[str, Any] = {
            "text": tokenizer.decode(sequence.tokens, skip_special_tokens=True),
            "tokens": sequence.tokens,
            "stop_reason": str(sequence.stop_reason),
        }
        if arguments.logprobs:
            made["logprobs"] = sequence.logprobs
        if arguments.topk_logprobs:
            made["topk_logprobs"] = sequence.topk_logprobs
        result["sequences"].append(made)
    if arguments.prompt_logprobs:
        result["prompt_logprobs"] = response.prompt_logprobs
    if arguments.topk_prompt_logprobs:
        result["topk_prompt_logprobs"] = response.topk_prompt_logprobs
    return result


def _show(out: Output, weights: Weights, results: list[dict[str, Any]], seconds: float) -> int:
    sequences = [each for result in results for each in result.get("sequences", ())]
    tokens = sum(len(each["tokens"]) for each in sequences)
    rate = round(tokens / seconds, 1) if seconds else 0.0
    if out.mode == "json":
        out.document(
            {
                "model": weights.name,
                "results": results,
                "tokens": tokens,
                "seconds": round(seconds, 3),
                "tokens_per_second": rate,
            }
        )
    failed = [result for result in results if "error" in result]
    for number, result in enumerate(results, 1):
        for at, each in enumerate(result.get("sequences", ()), 1):
            if len(sequences) > 1:
                out.say(f"--- prompt {number}, sample {at}" if len(results) > 1 else f"--- sample {at}")
            if out.mode != "json":
                out.line(each["text"])
        if "error" in result:
            out.error(
                CommandError(f"prompt {number}: {result['error']}" if len(results) > 1 else result["error"])
            )
    return 1 if failed else 0
