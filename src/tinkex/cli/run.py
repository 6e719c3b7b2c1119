"""`tinkex run`: training runs, listed, looked at and deleted."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .asking import add_yes, confirm
from .deleting import FAILED, delete_checkpoints, report
from .main import Parser
from .output import CommandError, Output, UsageError
from .paging import add_limit, fetch, more
from .reaching import add_server, rest
from .readable import ago, plural
from .shapes import RUN

if TYPE_CHECKING:
    from ..client.rest import RestClient
    from ..types.training_run import TrainingRun

Column = tuple[str, str, "Callable[[TrainingRun], Any]"]

COLUMNS: dict[str, Column] = {
    "id": ("Run ID", "its id", lambda run: run.training_run_id),
    "model": ("Base Model", "the base model", lambda run: run.base_model),
    "owner": ("Owner", "whose it is", lambda run: run.model_owner),
    "lora": ("LoRA", "the adapter's rank", lambda run: _lora(run)),
    "updated": ("Last Update", "the last request", lambda run: ago(run.last_request_time)),
    "status": ("Status", "OK or Failed", lambda run: "Failed" if run.corrupted else "OK"),
    "checkpoint": ("Last Checkpoint", "the newest training checkpoint", lambda run: _last(run)),
    "checkpoint_time": ("Checkpoint Time", "when that was", lambda run: _last_time(run)),
}
"""Column -> its heading, what it shows, and how it is made."""
DEFAULT = ("id", "model", "lora", "updated", "status")
_PAGE = 100


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    listing = group.add_parser("list", help="show training runs, newest first")
    add_limit(listing, "runs")
    listing.add_argument(
        "-c", "--columns", metavar="NAME,...",
        help=f"of {', '.join(f'{name} ({what})' for name, (_, what, _) in COLUMNS.items())} "
             f"[{','.join(DEFAULT)}]",
    )  # fmt: skip
    listing.command(_list, {"runs": [RUN]}, examples="tinkex run list --limit 0 -c id,model,checkpoint")
    info = group.add_parser("info", help="show one training run")
    info.add_argument("run_id", metavar="RUN_ID")
    info.command(_info, RUN)
    delete = group.add_parser("delete", help="delete all checkpoints of training runs, for good")
    delete.description = "Delete all checkpoints of training runs, for good; the runs stay on record."
    delete.add_argument("run_ids", metavar="RUN_ID", nargs="+")
    add_yes(delete)
    delete.command(
        _delete,
        {"runs": [{"run_id": "text", "deleted_count": "int", "failed": [FAILED]}],
         "deleted_count": "int", "failed": [FAILED]},
        examples="tinkex run delete s-1f3a:train:0 --yes",
    )  # fmt: skip
    for each in (listing, info, delete):
        add_server(each)


def _lora(run: TrainingRun) -> str:
    return "No" if not run.is_lora else f"Rank {run.lora_rank}" if run.lora_rank else "Yes"


def _last(run: TrainingRun) -> str | None:
    return run.last_checkpoint.checkpoint_id if run.last_checkpoint else None


def _last_time(run: TrainingRun) -> str | None:
    return ago(run.last_checkpoint.time) if run.last_checkpoint else None


def _list(arguments: argparse.Namespace, out: Output) -> int:
    names = [each.strip() for each in arguments.columns.split(",")] if arguments.columns else list(DEFAULT)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise UsageError(
            f"--columns: no column {', '.join(map(repr, unknown))}", f"there are {', '.join(COLUMNS)}"
        )
    client = rest(arguments, out)

    def page(limit: int, offset: int) -> tuple[list[TrainingRun], int]:
        answer = client.list_training_runs(limit, offset).result()
        return answer.training_runs, answer.cursor.total_count

    runs, total = fetch(page, arguments.limit, _PAGE, out, "training runs")
    out.table(
        {name: COLUMNS[name][0] for name in names},
        [{name: made(run) for name, (_, _, made) in COLUMNS.items()} for run in runs],
        name="runs",
        title=plural(len(runs), "training run") + more(len(runs), total),
        empty="No training runs found",
        essential="id",
        data={"runs": [run.model_dump() for run in runs]},
    )
    return 0


def _info(arguments: argparse.Namespace, out: Output) -> int:
    run = rest(arguments, out).get_training_run(arguments.run_id).result()
    fields = {
        "Run ID": run.training_run_id,
        "Base Model": run.base_model,
        "Owner": run.model_owner,
        "LoRA": f"Yes (Rank {run.lora_rank})" if run.is_lora and run.lora_rank else run.is_lora,
        "Last Update": ago(run.last_request_time),
        "Status": "Failed" if run.corrupted else "OK",
    }
    for name, checkpoint in (
        ("Last Training Checkpoint", run.last_checkpoint),
        ("Last Sampler Checkpoint", run.last_sampler_checkpoint),
    ):
        if checkpoint is not None:
            fields[name] = f"{checkpoint.tinker_path} ({ago(checkpoint.time)})"
    for key, value in (run.user_metadata or {}).items():
        fields[f"Metadata {key}"] = value
    out.record(fields, essential="Run ID", data=run.model_dump())
    return 0


def _delete(arguments: argparse.Namespace, out: Output) -> int:
    client = rest(arguments, out)
    found = {run: _checkpoints(client, run) for run in dict.fromkeys(arguments.run_ids)}
    paths = [path for each in found.values() if isinstance(each, list) for path in each]
    if paths:
        confirm(out, f"deleting {plural(len(paths), 'checkpoint')}", paths, yes=arguments.yes)
    failures = delete_checkpoints(client, paths, out)
    done = []
    for run, each in found.items():
        if isinstance(each, CommandError):
            failures[run] = each.message
            done.append({"run_id": run, "deleted_count": 0, "failed": [_failure(run, each.message)]})
        else:
            failed = [_failure(path, failures[path]) for path in each if path in failures]
            done.append({"run_id": run, "deleted_count": len(each) - len(failed), "failed": failed})
    return report(out, len(paths) + sum(run in failures for run in found), failures, runs=done)


def _failure(what: str, why: str) -> dict[str, str]:
    return {"tinker_path": what, "error": why}


def _checkpoints(client: RestClient, run: str) -> list[str] | CommandError:
    from ..errors import TinkerError
    from .advice import told

    try:
        return [each.tinker_path for each in client.list_checkpoints(run).result().checkpoints]
    except TinkerError as error:
        return told(error)
