"""What a server says when it listens: where it is, how to use it, what it has."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from .._version import __version__
from ..config import Secret
from .keys import KeyInfo
from .options import ServerOptions

__all__ = ["banner", "first_line", "ready_line", "warnings"]


def first_line(options: ServerOptions, url: str, new_key: Secret | None) -> str:
    """The start as one line of JSON for whoever started the server; a new key is told this once."""
    facts: dict[str, object] = {"url": url, "state": str(options.state), "pid": os.getpid()}
    if new_key is not None:
        facts["api_key"] = new_key.reveal()
    return json.dumps(facts)


def banner(options: ServerOptions, url: str, keys: Sequence[KeyInfo], new_key: Secret | None = None) -> str:
    """The start for people: lines to copy, models, state folder."""
    key = "tml-…" if new_key is None else new_key.reveal()
    note = "" if new_key is None else "   # made now, shown this once"
    lines = [
        f"tinkex {__version__} is listening",
        "",
        f"  export TINKER_BASE_URL={options.public_url or url}",
        f"  export TINKER_API_KEY={key}{note}",
        "",
    ]
    rows = [("model", f"{spec.name}  ({spec.folder})") for spec in options.models]
    rows.append(("keys", ", ".join(_known(info) for info in keys)))
    rows.append(("state", str(options.state)))
    if options.public_url is not None:
        rows.append(("listens", url))
    lines += [f"  {name.ljust(8)} {text}" for name, text in rows]
    lines += ["", f"Ctrl-C stops it; running work may take {options.times.drain:g} s to end."]
    return "\n".join(lines)


def _known(info: KeyInfo) -> str:
    hint = f" …{info.hint}" if info.hint else ""
    return f"{info.name}{hint} ({info.owner})"


def ready_line(name: str, device: str, dtype: str, seconds: float) -> str:
    """A model can be used."""
    return f"ready: {name} on {device}, {dtype}, after {seconds:.1f} s"


def warnings(options: ServerOptions, *, loopback: bool) -> list[str]:
    """What is dangerous or will not work in how the server was started."""
    found = []
    if not loopback and options.tls_cert is None:
        found.append(
            "other machines can reach this server, and keys and data travel unencrypted; "
            "use --tls-cert and --tls-key, or a proxy that does TLS"
        )
    if not loopback and options.public_url is None:
        found.append(
            "without --public-url, addresses for downloads are those of this machine alone; "
            "say under which address clients reach the server"
        )
    key = options.api_key
    if not loopback and key is not None and len(key.reveal()) < 24:
        found.append(
            "the key given at the start is short enough to be guessed; `tinkex keys add` makes better ones"
        )
    return found
