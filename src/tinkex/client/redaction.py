"""Taking credentials out of whatever leaves this process as text.

Only what is known to be harmless is let through; this module knows nothing of telemetry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..config import Config

__all__ = ["scrub", "scrub_data", "secrets_of"]

REMOVED = "[removed]"
_LONGEST_TEXT = 4000
_DEEPEST = 6

_TELLING = r"auth|bearer|cookie|credential|jwt|key|passw|secret|signature|token"
_SECRET_NAME = re.compile(_TELLING, re.IGNORECASE)
_NOT_FOR_OTHERS = re.compile(r"header|body|payload|prompt", re.IGNORECASE)

# In this order: the first ones take a whole value of which later ones would leave pieces.
_PATTERNS = (
    re.compile(r"(?<=://)[^/\s@\"']+@"),  # a login inside an address
    re.compile(r"(?<=\?)[\w%.~-]+=[^\s\"'>)\]}]*"),  # the query of an address: it may be signed
    re.compile(r"(?<=bearer )[^\s\"',;]+", re.IGNORECASE),
    re.compile(r"eyJ[\w-]*\.[\w-]*(?:\.[\w-]*)?"),  # a JSON web token, whole or cut off
    re.compile(r"\b(?:tml|sk|pk|hf|ghp|gho|xox[a-z]|AKIA|ASIA)[-_]?[\w-]{8,}"),
    re.compile(
        rf"(?P<name>[\w-]*(?:{_TELLING})[\w-]*[\"']?\s*[:=]\s*)[\"']?[^\s\"',;}}\]]+", re.IGNORECASE
    ),
)
_OPAQUE = re.compile(r"[\w-]{32,}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def secrets_of(config: Config) -> list[str]:
    """The credentials a config holds, to be looked for wherever they may have got to."""
    held = [value for name, value in config.headers.items() if _SECRET_NAME.search(name)]
    if config.api_key is not None:
        held.append(config.api_key.reveal())
    return held


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without credentials, nor anything that looks like one, and not too long."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, REMOVED)
    for pattern in _PATTERNS:
        text = pattern.sub(_replacement, text)
    return _OPAQUE.sub(_unless_plain, text)[:_LONGEST_TEXT]


def _replacement(found: re.Match[str]) -> str:
    return (found.groupdict().get("name") or "") + REMOVED


def _unless_plain(found: re.Match[str]) -> str:
    text = found.group()
    mixed = any(each.isdigit() for each in text) and any(each.isalpha() for each in text)
    return REMOVED if mixed and not _UUID.fullmatch(text) else text


def scrub_data(
    data: Mapping[Any, Any], secrets: Iterable[str] = (), *, depth: int = _DEEPEST
) -> dict[str, object]:
    """Plain values of a mapping, scrubbed; headers, bodies and what is named like a secret are left out."""
    held = list(secrets)
    return {
        str(name): _plain(value, held, depth)
        for name, value in data.items()
        if not _SECRET_NAME.search(str(name)) and not _NOT_FOR_OTHERS.search(str(name))
    }


def _plain(value: Any, secrets: list[str], depth: int) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return scrub(value, secrets)
    if depth > 0 and isinstance(value, Mapping):
        return scrub_data(value, secrets, depth=depth - 1)
    if depth > 0 and isinstance(value, (list, tuple)):
        return [_plain(item, secrets, depth - 1) for item in value]
    return f"<{type(value).__name__}>"
