"""`tinkex train`: supervised fine-tuning on a file of conversations, which can be stopped and resumed."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chats import ChatFormat
from .main import INTERRUPTED, Parser
from .output import CommandError, Output, UsageError
from .paths import parse_path
from .progress import ProgressLine
from .reaching import add_server, chat_command, service, where
from .readable import duration, plural
from .training_data import Dataset, digest_of, read_chats, split
from .training_log import RunFolder, default_folder
from .training_loop import Loop, Seen, stop_on_signals
from .training_settings import Settings, add_settings, given_settings
from .weights import find_model

if TYPE_CHECKING:
    from ..client.service import ServiceClient
    from ..client.training import TrainingClient

_SHAPE = {
    "log_path": "text",
    "run_id": "text",
    "steps": "int",
    "total_steps": "int",
    "interrupted": "bool",
    "train_nll": "number?",
    "test_nll": "number?",
    "tokens": "int",
    "seconds": "number",
    "tokens_per_second": "number",
    "state_path": "text?",
    "sampler_path": "text?",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument(
        "data", metavar="DATA", nargs="?", default=argparse.SUPPRESS,
        help='a JSONL file, {"messages": [{"role": "user", "content": "…"}, …]} on each line',
    )  # fmt: skip
    parser.add_argument(
        "--log-path", metavar="DIR", type=Path,
        help="the run's folder (default: a new one in TINKER_COOKBOOK_RUNS_DIR, else in ~/tinker-runs)",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on with the run in --log-path")
    add_settings(parser)
    add_server(parser)
    parser.command(
        _train,
        _SHAPE,
        examples="tinkex train chats.jsonl --model nano --rank 8 --epochs 3 --eval-split 0.1\n"
        "tinkex train --resume --log-path ~/tinker-runs/chats-2026-07-13-08-00-00",
    )


def _train(arguments: argparse.Namespace, out: Output) -> int:
    given = given_settings(arguments)
    folder, settings, config = _begun(arguments, given)
    chats = read_chats(Path(settings.data))
    tests = read_chats(Path(settings.eval_file)) if settings.eval_file else None
    if settings.eval_split:
        chats, tests = split(chats, settings.eval_split, settings.seed)
    about = {"created_by": "tinkex train"}
    with service(arguments, out, model=settings.model_name, user_metadata=about) as client:
        name, context = find_model(client, settings.model_name or _base_of(client, settings))
        settings = replace(settings, model_name=name)
        last = folder.last_checkpoint() if arguments.resume else None
        with ProgressLine(out) as line:
            line.show("making the model …", now=True)
            trainer = _trainer(client, settings, last)
            line.show("reading conversations …", now=True)
            format = ChatFormat(trainer.get_tokenizer())
            most = min(filter(None, (settings.max_length, context)), default=None)
            data = Dataset.of(chats, format, settings.train_on, most)
            test = None if tests is None else Dataset.of(tests, format, settings.train_on, most)
        _look(data, test, settings, out)
        first = 0 if last is None else int(last["step"])
        folder.begin({**config, **settings.dumped(), "base_url": client.config.base_url})
        folder.go_back_to(first)
        return _run(folder, settings, trainer, data, test, first, arguments.base_url, out)


def _begun(
    arguments: argparse.Namespace, given: dict[str, Any]
) -> tuple[RunFolder, Settings, dict[str, Any]]:
    """The run's folder and settings: a new one's, or those of the run to resume."""
    for name in ("data", "eval_file"):
        if name in given:
            given = {**given, name: str(Path(given[name]).expanduser().resolve())}
    if arguments.resume:
        if arguments.log_path is None:
            raise UsageError("which run is to be resumed?", "name its folder with --log-path")
        folder = RunFolder(arguments.log_path.expanduser().resolve())
        config = folder.config()
        settings = Settings.read(config).changed(given)
        if config.get("data_sha256") != digest_of(Path(settings.data)):
            raise CommandError(f"{settings.data} has changed since the run began", "begin a new run")
        return folder, settings, config
    if "data" not in given:
        raise UsageError(
            "there is no data to train on", "tinkex train DATA.jsonl; see `tinkex train --help`"
        )
    if "load_checkpoint_path" in given:
        parse_path(given["load_checkpoint_path"])
    data = Path(given["data"])
    digest = digest_of(data)
    place = arguments.log_path or default_folder(data.stem)
    folder = RunFolder(place.expanduser().resolve())
    if folder.is_used:
        raise CommandError(
            f"{folder.path} holds a run already", "--resume goes on with it; or name another --log-path"
        )
    config = {"created_by": "tinkex train", "log_path": str(folder.path), "data_sha256": digest}
    return folder, Settings(**given), config


def _base_of(client: ServiceClient, settings: Settings) -> str | None:
    """The base model of the checkpoint to begin with, if there is one."""
    from ..client.rest import RestClient

    if settings.load_checkpoint_path is None:
        return None
    rest = RestClient(client.holder)
    return rest.get_weights_info_by_tinker_path(settings.load_checkpoint_path).result().base_model


def _trainer(client: ServiceClient, settings: Settings, last: dict[str, Any] | None) -> TrainingClient:
    metadata = {"created_by": "tinkex train", "data": Path(settings.data).name}
    if last is not None:
        return client.create_training_client_from_state_with_optimizer(
            last["state_path"], user_metadata=metadata
        )
    if settings.load_checkpoint_path:
        return client.create_training_client_from_state(
            settings.load_checkpoint_path, user_metadata=metadata
        )
    return client.create_lora_training_client(
        settings.model_name, rank=settings.lora_rank, seed=settings.seed, user_metadata=metadata
    )


def _look(data: Dataset, test: Dataset | None, settings: Settings, out: Output) -> None:
    for which, option in ((data, settings.data), (test, settings.eval_file or settings.data)):
        if which is None:
            continue
        if not len(which):
            raise CommandError(
                f"no conversation in {option} has an answer to train on",
                'each needs a message of the "assistant"',
            )
        if which.dropped:
            out.warn(f"{plural(which.dropped, 'conversation')} without an answer in reach left out")
        if which.cut:
            out.warn(
                f"{plural(which.cut, 'conversation')} longer than the context or --max-length cut there"
            )


# ---- the run


def _run(
    folder: RunFolder,
    settings: Settings,
    trainer: TrainingClient,
    data: Dataset,
    test: Dataset | None,
    first: int,
    base_url: str | None,
    out: Output,
) -> int:
    from ..errors import TinkerError
    from .advice import told

    def say(text: str) -> None:
        folder.log(text)
        out.say(text)

    again = f"tinkex train --resume --log-path {folder.path}{where(base_url)}"
    newest: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    began = time.perf_counter()
    with (
        ProgressLine(out) as line,
        stop_on_signals(out) as stopped,
    ):
        loop = Loop(trainer, settings, data, test, first, stopped)
        say(
            f"{settings.model_name}: {plural(len(data), 'conversation')}, {plural(loop.total, 'step')}"
            f"{f' from step {first:,} on' if first else ''}; logs in {folder.path}"
        )
        try:
            for seen in loop.run():
                newest |= seen.values
                if seen.measured:
                    folder.metrics(seen.step, seen.values)
                    text = _told(seen, loop, time.perf_counter() - began)
                    folder.log(text)
                    if line.watched and seen.checkpoint is None and "test/nll" not in seen.values:
                        line.show(text, now=True)
                    else:
                        out.say(text)
                if seen.warning is not None:
                    folder.log(seen.warning)
                    out.warn(seen.warning)
                if seen.checkpoint is not None:
                    paths = seen.checkpoint
                    folder.checkpoint(paths)
                    say(f"saved {paths['sampler_path']}")
        except TinkerError as error:
            failed = told(error)
            folder.log(f"failed: {failed.message}")
            raise CommandError(failed.message, f"go on with: {again}") from error
        interrupted = stopped()
    seconds = time.perf_counter() - began
    out.record(
        {
            "log_path": str(folder.path),
            "run_id": trainer.model_id,
            "steps": loop.done,
            "total_steps": loop.total,
            "interrupted": interrupted,
            "train_nll": newest.get("train_mean_nll"),
            "test_nll": newest.get("test/nll"),
            "tokens": loop.tokens,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(loop.tokens / seconds, 1),
            "state_path": paths.get("state_path"),
            "sampler_path": paths.get("sampler_path"),
        },
        essential="sampler_path",
        text=_farewell(loop, paths, again if interrupted else "", base_url, seconds),
    )
    return INTERRUPTED if interrupted else 0


def _told(seen: Seen, loop: Loop, seconds: float) -> str:
    parts = [f"step {min(seen.step + 1, loop.total):,}/{loop.total:,}"]
    if "train_mean_nll" in seen.values:
        parts.append(f"loss {seen.values['train_mean_nll']:.4f}")
    if "test/nll" in seen.values:
        parts.append(f"test {seen.values['test/nll']:.4f}")
    if "train_mean_nll" in seen.values:
        ahead = (loop.total - loop.done) * seconds / max(loop.done - loop.first, 1)
        parts.append(f"lr {seen.values['learning_rate']:.2e}")
        parts.append(f"{seen.values['tokens_per_second']:,.0f} tokens/s")
        parts.append(f"{duration(ahead)} left")
    return "  ".join(parts)


def _farewell(loop: Loop, paths: dict[str, Any], again: str, base_url: str | None, seconds: float) -> str:
    if again:
        return f"Stopped after step {loop.done:,} and saved. Go on with: {again}"
    if not paths:
        return "This run was finished already."
    rate = loop.tokens / seconds
    return (
        f"Done: {plural(loop.done - loop.first, 'step')} in {duration(seconds)}, {rate:,.0f} tokens/s.\n"
        f"Talk to it: {chat_command(base_url, loop.settings.model_name, paths['sampler_path'])}"
    )
