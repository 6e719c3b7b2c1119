"""Where a credential comes from, and the file in which a login is kept."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Config, Secret
from ..errors import TinkerError

__all__ = ["CredentialStore", "StoredKey", "find_credential", "is_jwt", "run_command"]

_HOW = (
    "Set TINKER_API_KEY, pass api_key=…, set TINKER_CREDENTIAL_CMD, or run `tinkex auth login`; "
    "a server of your own prints its key when it starts (`tinkex serve`), "
    "and TINKER_BASE_URL=local starts one on this machine that needs none."
)
_COMMAND_SECONDS = 60


def is_jwt(credential: str) -> bool:
    """Whether a credential is a token rather than a key."""
    return credential.startswith("eyJ")


def check_key(key: str) -> None:
    """Refuse what cannot be a key of this service."""
    if not (key.startswith("tml-") or is_jwt(key)):
        raise TinkerError(
            "The API key must start with 'tml-' (or be a JWT, which starts with 'eyJ'). " + _HOW
        )


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key kept from a login."""

    id: str
    key: Secret
    name: str = ""
    type: str = "manual"
    note: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


class CredentialStore:
    """The login file, `~/.tinker/credentials.json`, readable by its owner alone."""

    path: Path

    def __init__(self, path: Path | None = None) -> None:
        try:
            self.path = path or Path.home() / ".tinker" / "credentials.json"
        except RuntimeError as problem:
            raise TinkerError(f"The login file has no place: {problem} " + _HOW) from None

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError):
            raise TinkerError(f"{self.path} cannot be read; mend or delete it, then log in again") from None
        return data if isinstance(data, dict) else {}

    def default(self) -> StoredKey | None:
        """The key to use when nothing else is given."""
        data = self._read()
        keys, name = data.get("keys"), data.get("default")
        entry = keys.get(name) if isinstance(keys, dict) and isinstance(name, str) else None
        if not isinstance(entry, dict) or not isinstance(entry.get("key"), str):
            return None
        return StoredKey(
            str(name),
            Secret(entry["key"]),
            str(entry.get("name", "")),
            str(entry.get("type", "manual")),
            entry.get("note"),
            entry.get("details") or {},
        )

    def save(self, key: StoredKey) -> None:
        """Keep a key and make it the default."""
        data = self._read()
        entry: dict[str, Any] = {"type": key.type, "key": key.key.reveal(), "name": key.name}
        if key.note:
            entry["note"] = key.note
        if key.details:
            entry["details"] = key.details
        held = data.get("keys")
        keys = {**(held if isinstance(held, dict) else {}), key.id: entry}
        self._write({"version": 1, "default": key.id, "keys": keys})

    def remove_default(self) -> StoredKey | None:
        """Forget the default key; no other takes its place."""
        held = self.default()
        if held is not None:
            keys = {k: v for k, v in self._read()["keys"].items() if k != held.id}
            self._write({"version": 1, "default": None, "keys": keys})
        return held

    def _write(self, data: dict[str, Any]) -> None:
        if not self.path.parent.is_dir():
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.parent.chmod(0o700)  # the umask had a say in the line above
        # Written beside the file, for its owner alone as mkstemp does, then moved over it: never half.
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".credentials-")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(data, file, indent=2)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def run_command(command: str) -> Secret:
    """The credential a command prints."""
    try:
        # The user's own command, from their own environment.
        done = subprocess.run(  # noqa: S602
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TinkerError(f"TINKER_CREDENTIAL_CMD took more than {_COMMAND_SECONDS} s") from None
    except OSError as problem:
        raise TinkerError(f"TINKER_CREDENTIAL_CMD could not be run: {problem.strerror}") from None
    credential = done.stdout.strip()
    if done.returncode != 0 or not credential:
        # Its output may hold a secret, so only the exit code is told.
        raise TinkerError(f"TINKER_CREDENTIAL_CMD gave no credential (exit code {done.returncode})")
    return Secret(credential)


def find_credential(config: Config, store: CredentialStore | None = None) -> Secret:
    """The credential a config stands for: key, command, or stored login."""
    if config.api_key is not None:
        key = config.api_key.reveal()
        if key.startswith("tml-") or is_jwt(key) or config.credential_command is None:
            check_key(key)
            return config.api_key
    if config.credential_command is not None:
        return run_command(config.credential_command)
    held = (store or CredentialStore()).default()
    if held is not None:
        check_key(held.key.reveal())
        return held.key
    raise TinkerError("No credential was found. " + _HOW)
