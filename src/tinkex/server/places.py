"""Where a server's things lie on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..models import expanded

__all__ = ["KEY_FILE", "TOKEN_SECRET", "default_state"]

KEY_FILE = "keys.json"
TOKEN_SECRET = "token-secret"  # noqa: S105 - the name of a file


def default_state(environ: Mapping[str, str] | None = None) -> Path:
    """The state folder of a server that is not told another: TINKEX_STATE, or the platform's place."""
    env = os.environ if environ is None else environ
    if env.get("TINKEX_STATE"):
        return expanded(env["TINKEX_STATE"])
    if sys.platform == "win32":
        return Path(env.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "tinkex"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "tinkex"
    return Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tinkex"
