"""`tinkex billing`: what was used by the hour, and what checkpoints take up."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from .main import Parser
from .output import Output
from .reaching import add_server, admin
from .readable import plural

_RATES = {
    "training": "effective_rate_usd_per_million_tokens",
    "sampling_prefill": "effective_rate_usd_per_million_tokens",
    "sampling_sample": "effective_rate_usd_per_million_tokens",
    "storage": "effective_rate_usd_per_gigabyte_month",
}
"""Kinds of usage that cost something, and the rate by which."""
_EVENT = {
    "bucket_start": "time",
    "bucket_end": "time",
    "base_model": "text?",
    "user_id": "text?",
    "user_name": "text?",
    "session_id": "text?",
    "project_id": "text?",
    "estimated_cost_usd": "number?",
    "effective_rate_usd_per_million_tokens": "number?",
    "effective_rate_usd_per_gigabyte_month": "number?",
    "event_info": {"type": "text", "*": "any"},
}
_STORED = {
    "project_id": "text?",
    "org_user_urn": "text?",
    "user_email": "text?",
    "user_name": "text?",
    "checkpoint_count": "int",
    "size_bytes": "int",
    "size_gigabytes": "number",
    "estimated_monthly_cost_usd": "number?",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    usage = group.add_parser("usage", help="show usage by the hour, for at most 14 days")
    usage.add_argument("starting_on", metavar="STARTING_ON", help="a whole hour, like 2026-07-13T00:00:00Z")
    usage.add_argument("ending_before", metavar="ENDING_BEFORE", help="a whole hour")
    _add_csv(usage, "--csv", "write the rows as CSV instead")
    _add_csv(usage, "--sessions-csv", "write the sessions and their metadata as CSV")
    usage.command(
        _usage,
        {"data": [_EVENT], "sessions": {"*": {"user_metadata": "map?"}}, "cost_data_through": "time?"},
        examples="tinkex billing usage 2026-07-13T00:00:00Z 2026-07-14T00:00:00Z --csv usage.csv",
    )
    storage = group.add_parser("checkpoint-storage", help="show what checkpoints take up now")
    storage.add_argument("--project-id", metavar="ID", help="in one project")
    _add_csv(storage, "--csv", "write the rows as CSV instead")
    storage.command(_storage, {"effective_rate_usd_per_gigabyte_month": "number?", "data": [_STORED]})
    for each in (usage, storage):
        add_server(each)


def _add_csv(parser: Parser, option: str, does: str) -> None:
    parser.add_argument(option, metavar="PATH", help=f"{does} ('-': to stdout)")


def _usage(arguments: argparse.Namespace, out: Output) -> int:
    answer = (
        admin(arguments, out).get_billing_usage(arguments.starting_on, arguments.ending_before).result()
    )
    dumped = answer.model_dump(mode="json")
    rows = [_flat(row) for row in dumped["data"]]
    if arguments.sessions_csv is not None:
        sessions = [
            {"session_id": id, "user_metadata": held and json.dumps(held)}
            for id, held in ((id, each["user_metadata"]) for id, each in dumped["sessions"].items())
        ]
        _write_csv(out, arguments.sessions_csv, sessions, ("session_id", "user_metadata"))
    if arguments.csv is not None:
        _write_csv(out, arguments.csv, rows)
    if arguments.csv is None and arguments.sessions_csv is None:
        out.table(
            {name: name for name in _columns(rows)},
            [_priced(row) for row in rows],
            name="data",
            title=plural(len(rows), "hourly usage row"),
            empty="No billing usage in this window",
            data={name: dumped[name] for name in ("data", "sessions", "cost_data_through")},
        )
    return 0


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose details stand beside its other fields."""
    return {**{name: value for name, value in row.items() if name != "event_info"}, **row["event_info"]}


def _priced(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in which a price that applies and is not known reads `null`, unlike one that does not apply."""
    rate = _RATES.get(row.get("type", ""))
    applies = () if rate is None else ("estimated_cost_usd", rate)
    return {**row, **{name: "null" for name in applies if row.get(name) is None}}


def _storage(arguments: argparse.Namespace, out: Output) -> int:
    answer = (
        admin(arguments, out).get_current_checkpoint_storage_usage(project_id=arguments.project_id).result()
    )
    dumped = answer.model_dump(mode="json")
    name = "effective_rate_usd_per_gigabyte_month"
    rows = [{name: dumped[name], **row} for row in dumped["data"]]
    if arguments.csv is not None:
        _write_csv(out, arguments.csv, rows)
    else:
        out.table(
            {each: each for each in _columns(rows)},
            rows,
            name="data",
            title="Current checkpoint storage",
            empty="No active checkpoint storage",
            data={name: dumped[name], "data": dumped["data"]},
        )
    return 0


# ---- CSV


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(
    out: Output, path: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()
) -> None:
    def write(file: TextIO) -> None:
        writer = csv.DictWriter(file, columns or _columns(rows), restval="")
        writer.writeheader()
        writer.writerows(rows)

    if path == "-":
        write(out.stdout)
        return
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        write(file)
    if out.mode == "table":
        out.stderr.write(f"Wrote {plural(len(rows), 'row')} to {path}\n")
