"""Where packages come from on this machine, and the address of one file there.

pip's own settings count: its indexes, its certificate, and passwords inside addresses.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from ..errors import TinkerError

__all__ = ["Indexes", "configured", "file_address", "opened"]

PYPI = "https://pypi.org/simple"
_SECONDS = 60.0
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class Indexes:
    """Addresses of package indexes, the first first, and the certificates to trust."""

    addresses: tuple[str, ...] = (PYPI,)
    certificates: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def configured(environ: Mapping[str, str] | None = None) -> Indexes:
    """What pip is told to use here, by its files and the environment; PyPI if it is told nothing."""
    env = os.environ if environ is None else environ
    said = {**_pip_says(env), **_variables(env)}
    addresses = [said.get("index-url") or PYPI, *_split(said.get("extra-index-url", ""))]
    if said.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        addresses = []
    return Indexes(tuple(dict.fromkeys(addresses)), said.get("cert") or env.get("SSL_CERT_FILE"), dict(env))


def _variables(env: Mapping[str, str]) -> dict[str, str]:
    names = {"PIP_INDEX_URL": "index-url", "PIP_EXTRA_INDEX_URL": "extra-index-url", "PIP_CERT": "cert",
             "PIP_NO_INDEX": "no-index"}  # fmt: skip
    return {option: env[name] for name, option in names.items() if env.get(name)}


def _pip_says(env: Mapping[str, str]) -> dict[str, str]:
    """pip's configuration files; nothing where there is no pip."""
    command = [sys.executable, "-P", "-m", "pip", "config", "list", "--disable-pip-version-check"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[str, str] = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        name, equals, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if equals and section in ("global", "install", "download"):
            found[option] = " ".join(shlex.split(value))
    return found


def _split(text: str) -> list[str]:
    return text.replace("\\n", " ").split()


def file_address(indexes: Indexes, project: str, file: str) -> str:
    """The address of one file of a project, from the first index that has it."""
    if not indexes.addresses:
        raise TinkerError(f"pip is told to use no index here (no-index): {file} cannot be looked for")
    tried = []
    for index in indexes.addresses:
        page = f"{index.rstrip('/')}/{project}/"
        try:
            with opened(page, indexes, {"Accept": _ACCEPT}) as answer:
                body, kind, where = answer.read(), answer.headers.get("Content-Type", ""), answer.url
            listed = list(_listed(body, kind))
        except (OSError, ValueError) as problem:
            tried.append(f"{_shown(index)}: {_why(problem)}")
            continue
        for name, address in listed:
            if name == file:
                return urllib.parse.urljoin(where or page, address)
        tried.append(f"{_shown(index)}: it does not have the file")
    raise TinkerError(f"{file} was not found ({'; '.join(tried)})")


def opened(address: str, indexes: Indexes, headers: Mapping[str, str] | None = None) -> Any:
    """Open an address for reading; a user and password inside it are sent as they should be."""
    parts = urllib.parse.urlsplit(address)
    sent = {"User-Agent": "tinkex", **(headers or {})}
    if "@" in parts.netloc:
        login, _, host = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
        sent["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        address = urllib.parse.urlunsplit(parts._replace(netloc=host))
    if parts.scheme not in ("http", "https", "file"):
        raise ValueError(f"{parts.scheme}:// is not an address of an index")
    if parts.scheme == "file" and address.endswith("/"):
        address += "index.html"
    context = ssl.create_default_context(cafile=indexes.certificates) if parts.scheme == "https" else None
    request = urllib.request.Request(address, headers=sent)  # noqa: S310 - the scheme was looked at
    return urllib.request.urlopen(request, timeout=_SECONDS, context=context)  # noqa: S310


def _listed(body: bytes, kind: str) -> Iterator[tuple[str, str]]:
    """Names and addresses of an index page, in either form."""
    if "json" in kind:
        try:
            held = json.loads(body)
        except RecursionError:
            raise ValueError("its page is nested too deep") from None
        files = held.get("files") if isinstance(held, dict) else None
        for entry in files if isinstance(files, list) else ():
            name, address = (
                (entry.get(key) for key in ("filename", "url")) if isinstance(entry, dict) else (0, 0)
            )
            if isinstance(name, str) and isinstance(address, str):
                yield name, address
        return
    page = _Links()
    page.feed(body.decode("utf-8", "replace"))
    for text, address in page.found:
        name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
        yield name or text, address


class _Links(HTMLParser):
    """The links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep where a link leads."""
        target = dict(attrs).get("href")
        if tag == "a" and target:
            self.found.append(("", target))


def _shown(address: str) -> str:
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _why(problem: Exception) -> str:
    if isinstance(problem, urllib.error.HTTPError):
        return f"HTTP {problem.code}"
    reason = getattr(problem, "reason", None)
    return str(reason or problem)
