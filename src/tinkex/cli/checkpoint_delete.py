"""`tinkex checkpoint delete`: by path, or those of a run that match."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .asking import add_yes, confirm
from .deleting import FAILED, delete_checkpoints, report
from .main import Parser
from .output import Output, UsageError
from .paths import parse_path
from .reaching import rest
from .readable import ago, plural, size

if TYPE_CHECKING:
    from ..client.rest import RestClient

_KINDS = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
    "training": "training",
    "sampler": "sampler",
    "external": "external",
}
_HELP = "see `tinkex checkpoint delete --help`"


def fill(parser: Parser) -> None:
    """Fill the command's parser."""
    parser.add_argument("checkpoint_paths", metavar="CHECKPOINT_PATH", nargs="*")
    parser.add_argument("--run-id", metavar="RUN_ID", help="all checkpoints of a training run")
    parser.add_argument(
        "--type", dest="checkpoint_type", choices=_KINDS, metavar="TYPE",
        help="of those only weights, sampler_weights or external_weights",
    )  # fmt: skip
    for name, sense in (("before", "older"), ("after", "newer")):
        parser.add_argument(
            f"--{name}", metavar="DATE", type=_moment,
            help=f"of those only {sense} ones (2026-01-31 or 2026-01-31T08:00:00Z, in UTC)",
        )  # fmt: skip
    add_yes(parser)
    parser.command(
        _delete,
        {"deleted_count": "int", "failed": [FAILED]},
        examples="tinkex checkpoint delete tinker://s-1f3a:train:0/weights/000100\n"
        "tinkex checkpoint delete --run-id s-1f3a:train:0 --type weights --before 2026-01-31 --yes",
    )


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date like 2026-01-31") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _delete(arguments: argparse.Namespace, out: Output) -> int:
    paths, run = list(dict.fromkeys(arguments.checkpoint_paths)), arguments.run_id
    filtered = arguments.checkpoint_type or arguments.before or arguments.after
    if bool(paths) is bool(run):
        raise UsageError("name either checkpoint paths or a --run-id", _HELP)
    if filtered and not run:
        raise UsageError("--type, --before and --after need a --run-id", _HELP)
    for path in paths:
        parse_path(path)
    client = rest(arguments, out)
    shown = paths
    if run:
        paths, shown = _matching(client, arguments)
        if not paths:
            out.say(f"No checkpoints found for run {run} matching filters")
            return report(out, 0, {})
    confirm(out, f"deleting {plural(len(paths), 'checkpoint')}", shown, yes=arguments.yes)
    return report(out, len(paths), delete_checkpoints(client, paths, out))


def _matching(client: RestClient, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The paths of a run's checkpoints that match, and each with what it is."""
    kind, before, after = _KINDS.get(arguments.checkpoint_type), arguments.before, arguments.after
    found = [
        one
        for one in client.list_checkpoints(arguments.run_id).result().checkpoints
        if (kind is None or one.checkpoint_type == kind)
        and (before is None or one.time < before)
        and (after is None or one.time > after)
    ]
    shown = [
        f"{one.tinker_path} ({size(one.size_bytes) or 'size unknown'}, {ago(one.time)})" for one in found
    ]
    return [one.tinker_path for one in found], shown
