"""`tinkex keys`: who may use a server. Changes hold from the next request on, also while it runs."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..models import expanded
from ..server.keys import KeyInfo, KeyRing, KeysError
from ..server.places import KEY_FILE, default_state
from .main import Parser
from .output import CommandError, Output

_KEY = {
    "id": "int",
    "name": "text",
    "owner": "text",
    "hint": "text",
    "created": "time",
    "revoked": "time?",
    "note": "text",
}


def register(parser: Parser) -> None:
    """Fill the command's parser."""
    group = parser.commands()
    add = group.add_parser("add", help="make a key and show it, this once")
    add.add_argument("name", metavar="NAME", help="what the key is called in lists")
    add.add_argument("--owner", help="whose models and checkpoints it opens (default: NAME)")
    add.add_argument("--note", default="", help="a line for yourself")
    add.command(_add, {"key": "text", **_KEY})
    listing = group.add_parser("list", help="show the keys, never the keys themselves")
    listing.add_argument("--all", action="store_true", help="the revoked ones too")
    listing.command(_list, {"keys": [_KEY]})
    revoke = group.add_parser("revoke", help="let a key in no more")
    revoke.add_argument("keys", metavar="KEY", nargs="+", help="its id (3 or #3), name or last characters")
    revoke.command(_revoke, {"revoked": [_KEY], "failed": [{"key": "text", "error": "text"}]})
    for each in (add, listing, revoke):
        each.add_argument("--state", metavar="DIR", type=Path, help="the server's state folder")


def _ring(arguments: argparse.Namespace) -> KeyRing:
    state = default_state() if arguments.state is None else expanded(arguments.state)
    return KeyRing(state / KEY_FILE)


def _shown(info: KeyInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "name": info.name,
        "owner": info.owner,
        "hint": f"…{info.hint}",
        "created": _date(info.created),
        "revoked": None if info.revoked is None else _date(info.revoked),
        "note": info.note,
    }


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _add(arguments: argparse.Namespace, out: Output) -> int:
    owner = arguments.owner or arguments.name
    ring = _ring(arguments)
    info, key = ring.add(arguments.name, owner, arguments.note)
    out.record({"key": key.reveal(), **_shown(info)}, essential="key", text=key.reveal())
    out.say(f"Key #{info.id} {info.name!r} of {info.owner!r} in {ring.path}; it is not shown again.")
    return 0


def _list(arguments: argparse.Namespace, out: Output) -> int:
    keys = [info for info in _ring(arguments).list() if arguments.all or info.revoked is None]
    columns = {name: name.upper() for name in ("id", "name", "owner", "hint", "created", "revoked", "note")}
    if not arguments.all:
        del columns["revoked"]
    out.table(
        columns,
        [_shown(info) for info in keys],
        name="keys",
        empty="no keys; `tinkex keys add NAME` makes one",
    )
    return 0


def _revoke(arguments: argparse.Namespace, out: Output) -> int:
    ring = _ring(arguments)
    revoked, failed = [], []
    for which in arguments.keys:
        try:
            revoked.append(_shown(ring.revoke(which)))
        except KeysError as error:
            failed.append({"key": which, "error": str(error)})
            out.error(CommandError(str(error)))
    if out.mode == "json":
        out.document({"revoked": revoked, "failed": failed})
    for each in revoked:
        out.say(f"Key #{each['id']} {each['name']!r} of {each['owner']!r} is let in no more.")
    return 1 if failed else 0
