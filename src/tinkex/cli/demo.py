"""`tinkex demo`: a small model learns in front of your eyes, on this machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import LOCAL
from .main import Parser
from .output import CommandError, Output
from .reaching import chat_command, config_of

if TYPE_CHECKING:
    from ..demo.lessons import Lesson, Plan, Task

_CHANGE = {"before": "number", "after": "number", "change": "number", "low": "number", "high": "number",
           "samples": "int"}  # fmt: skip
_LESSON = {
    "task": "text",
    "title": "text",
    "measure": "text",
    "curve": ["number"],
    "change": _CHANGE,
    "shown": [{"question": "text", "before": "text", "after": "text"}],
    "checkpoint": "text",
    "seconds": "number",
}
_SHAPE = {
    "model?": "text",
    "seed?": "int",
    "seconds?": "number",
    "report?": "text",
    "lessons?": [_LESSON],
    "code?": {"*": "text"},  # and nothing else, with --show-code
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    words = {
        "--task": "supervised fine-tuning, reinforcement learning, or one after the other [both]",
        "--model": "the model that learns: a name of `tinkex models list`, or a folder; with larger ones"
        " the lessons take long on a CPU [nano]",
        "--seed": "another seed, another run [0]",
        "--out": "where the report goes [tinkex-demo.html]",
        "--show-code": "print the loops it runs, and leave",
        "--base-url": "a server to use instead of one started for this",
    }
    parser.add_argument("--task", choices=["sft", "rl", "both"], default="both", help=words["--task"])
    parser.add_argument("--model", metavar="NAME", default="nano", help=words["--model"])
    parser.add_argument("--seed", metavar="N", type=int, default=0, help=words["--seed"])
    out = Path("tinkex-demo.html")
    parser.add_argument("--out", metavar="FILE", type=Path, default=out, help=words["--out"])
    parser.add_argument("--show-code", action="store_true", help=words["--show-code"])
    parser.add_argument("--base-url", metavar="URL", default="local", help=words["--base-url"])
    parser.command(
        _demo,
        _SHAPE,
        examples="tinkex demo\n"
        "tinkex demo --task rl --seed 3 --out rl.html\n"
        "tinkex demo --show-code  # the loops are short: they are the tutorial",
    )


def _demo(arguments: argparse.Namespace, out: Output) -> int:
    from ..demo.lessons import Plan, teach
    from ..demo.screen import summary

    tasks: list[Task] = ["sft", "rl"] if arguments.task == "both" else [arguments.task]
    if arguments.show_code:
        return _code(tasks, out)
    _check(arguments.out)
    began = time.monotonic()
    with _client(arguments, out) as client:
        offered = [one.model_name or "" for one in client.get_server_capabilities().supported_models]
        plan = Plan(model=_served(arguments.model, offered), seed=arguments.seed)
        lessons: list[Lesson] = []
        for task in tasks:
            lessons.append(teach(client, task, plan, _screen(out)))
            if out.mode == "table":
                summary(lessons[-1], out.line)
    seconds = time.monotonic() - began
    _tell(arguments, lessons, plan, seconds, out)
    return 0


def _client(arguments: argparse.Namespace, out: Output) -> Any:
    from ..client.access import check_access
    from ..client.service import ServiceClient

    # The tokenizer's library takes seconds to load: meanwhile the server starts.
    threading.Thread(target=_import_tokenizers, name="tinkex-imports", daemon=True).start()
    config = config_of(arguments, out, display_name="tinkex demo").with_(plain_tokenizers=False)
    if config.base_url == LOCAL:
        config = config.with_(local_models=(arguments.model,))
    else:
        check_access(config)
    return ServiceClient(config=config)


def _import_tokenizers() -> None:
    with contextlib.suppress(ImportError):  # it is told when the tokenizer is wanted
        importlib.import_module("transformers").AutoTokenizer  # noqa: B018


def _served(wanted: str, offered: list[str]) -> str:
    """The name a model has on the server: its own, or that of its folder."""
    for name in (wanted, wanted.partition("=")[0], Path(wanted).name):
        if name in offered:
            return name
    raise CommandError(f"the server does not have {wanted!r}", f"it has {', '.join(offered)}")


def _check(path: Path) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CommandError(f"{path} cannot be written", "name a file in a folder that is there, with --out")


def _screen(out: Output) -> Any:
    import io

    from ..demo.screen import Screen

    if out.mode != "table":
        return Screen(io.StringIO(), live=False)
    return Screen(out.stdout, live=out.stdout.isatty() and os.environ.get("TERM") != "dumb")


def _code(tasks: list[Task], out: Output) -> int:
    from ..demo.report import code_of

    code = {task: code_of(task) for task in tasks}
    if out.mode == "json":
        out.document({"code": code})
    else:
        out.line("\n\n".join(text.strip() for text in code.values()))
    return 0


def _tell(
    arguments: argparse.Namespace, lessons: list[Lesson], plan: Plan, seconds: float, out: Output
) -> None:
    from ..demo.report import report

    arguments.out.write_text(report(lessons, plan, seconds), "utf-8")
    where = str(arguments.out.absolute())
    said = [
        f"{seconds:.0f} s in all. The report: {where}",
        "The code is short:    tinkex demo --show-code",
        f"Talk to the result:   {chat_command(arguments.base_url, arguments.model, lessons[0].checkpoint)}",
    ]
    document = {
        "model": plan.model,
        "seed": plan.seed,
        "seconds": seconds,
        "report": where,
        "lessons": [dataclasses.asdict(lesson) for lesson in lessons],
    }
    out.record(document, essential="report", text="\n".join(said))
