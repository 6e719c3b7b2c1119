"""`tinkex session`: what clients have opened, and the timeline of one."""

from __future__ import annotations

import argparse
from pathlib import Path

from .main import Parser
from .output import CommandError, Output
from .paging import add_limit
from .reaching import add_server, rest
from .readable import size

SESSION = {
    "session_id": "text",
    "training_run_ids": ["text"],
    "sampler_ids": ["text"],
    "user_metadata": "map?",
    "display_name": "text?",
}
_PAGE = 100


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    listing = group.add_parser("list", help="show session ids, newest first")
    add_limit(listing, "sessions")
    listing.command(_list, {"sessions": [{"session_id": "text"}]})
    info = group.add_parser("info", help="show the training runs and samplers of a session")
    info.add_argument("session_id", metavar="SESSION_ID")
    info.command(_info, SESSION)
    trace = group.add_parser("export-trace", help="download a session's timeline, for ui.perfetto.dev")
    trace.add_argument("session_id", metavar="SESSION_ID")
    trace.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="where it goes [./SESSION_ID.pftrace]"
    )
    trace.add_argument("--url-only", action="store_true", help="only show the address to download it from")
    trace.command(
        _trace,
        {"session_id": "text", "url?": "text", "destination?": "text", "file_size_bytes?": "int"},
    )
    for each in (listing, info, trace):
        add_server(each)


def _list(arguments: argparse.Namespace, out: Output) -> int:
    from itertools import islice

    found = islice(rest(arguments, out).iter_sessions(page_size=_PAGE), arguments.limit or None)
    out.table({"session_id": "Session ID"}, [{"session_id": each} for each in found], name="sessions")
    return 0


def _info(arguments: argparse.Namespace, out: Output) -> int:
    found = rest(arguments, out).get_session(arguments.session_id).result()
    fields = {
        "Session ID": arguments.session_id,
        "Name": found.display_name,
        "Training Runs": ", ".join(found.training_run_ids),
        "Samplers": ", ".join(found.sampler_ids),
    }
    for key, value in (found.user_metadata or {}).items():
        fields[f"Metadata {key}"] = value
    data = {"session_id": arguments.session_id, **found.model_dump()}
    out.record(fields, essential="Session ID", data=data)
    return 0


def _trace(arguments: argparse.Namespace, out: Output) -> int:
    import shutil
    import urllib.request

    id = arguments.session_id
    url = rest(arguments, out).export_session_trace(id).result()
    if arguments.url_only:
        out.record({"session_id": id, "url": url}, essential="url", text=url)
        return 0
    target = arguments.output or Path(f"{id}.pftrace")
    target.parent.mkdir(parents=True, exist_ok=True)
    growing = target.with_name(f"{target.name}.part")
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, growing.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file)
        growing.replace(target)
    except OSError as error:
        raise CommandError(f"the trace could not be downloaded: {error}", "run the command again") from None
    finally:
        growing.unlink(missing_ok=True)
    length = target.stat().st_size
    fields = {"Session ID": id, "Saved to": target, "Size": size(length)}
    data = {"session_id": id, "destination": str(target), "file_size_bytes": length}
    out.record(fields, essential="Saved to", data=data)
    return 0
