"""One frozen `Config`, resolved once: argument, then environment, then default.

Nothing reads the environment after construction, so two clients with different settings live side
by side.  Secrets are masked wherever a config is shown.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from .errors import InvalidArgumentError

__all__ = ["DEFAULT_BASE_URL", "Config", "Secret", "is_this_machine", "normalize_url"]

DEFAULT_BASE_URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
LOCAL = "local"  # a base URL that stands for a server of one's own

_PORTS = {"http": 80, "https": 443}
_API = "/api/v1"
_ON = frozenset({"1", "true", "yes", "on"})
_LOGIN = re.compile(r"//[^/]*@")


class Secret:
    """A credential that does not show itself; `reveal()` gives it to the one place that sends it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The credential itself."""
        return self._value

    @property
    def digest(self) -> str:
        """A fingerprint that tells credentials apart without giving them away."""
        return hashlib.sha256(self._value.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "Secret(****)"

    def __reduce__(self) -> Any:
        raise TypeError("a credential is not pickled; the receiving process must have its own")


def normalize_url(url: str) -> str:
    """One spelling per server: lower-case scheme and host, no default port, trailing slash or API path."""
    url = url.strip()
    if url == LOCAL:
        return url
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    except ValueError:
        scheme = host = ""
    if scheme not in _PORTS or not host:
        shown = _LOGIN.sub("//", url)
        raise InvalidArgumentError(f"base_url: {shown!r} is not an http:// or https:// address")
    if ":" in host:
        host = f"[{host}]"
    if port is not None and port != _PORTS[scheme]:
        host = f"{host}:{port}"
    path = parts.path.rstrip("/").removesuffix(_API).rstrip("/")
    return urlunsplit((scheme, host, path, "", ""))


@dataclass(frozen=True, slots=True)
class Config:
    """How a client behaves; build it with `Config.resolve`."""

    base_url: str = DEFAULT_BASE_URL
    api_key: Secret | None = None
    credential_command: str | None = field(default=None, repr=False)  # may hold a credential
    project_id: str | None = None
    tags: tuple[str, ...] = ()
    user_metadata: Mapping[str, str] = field(default_factory=dict)
    display_name: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    telemetry: bool = True
    timeout: float = 60.0
    connect_timeout: float = 5.0
    poll_timeout: float = 45.0
    retry_seconds: float = 300.0  # how long one operation keeps trying to be accepted
    stuck_seconds: float | None = None  # how long nothing may come back before waiting work fails
    limit_group: str | None = None  # clients of other groups have limits of their own
    ca_file: str | None = None
    proxy: str | None = field(default=None, repr=False)  # may hold a password
    no_proxy: str = ""
    tokenizer_dir: str | None = None
    offline: bool = False
    plain_tokenizers: bool = False  # where they are enough: transformers takes seconds to load
    circuit_breaker: bool = False
    local_models: tuple[str, ...] = (
        "nano",
    )  # what a server of one's own has, as `tinkex serve --model` takes it
    local_state: str | None = None  # its state folder
    local_options: tuple[str, ...] = ()  # more arguments of `tinkex serve`

    @classmethod
    def resolve(
        cls,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        project_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Config:
        """Take arguments first, then the environment, then defaults."""
        env = os.environ if environ is None else environ
        url = normalize_url(base_url or env.get("TINKER_BASE_URL") or DEFAULT_BASE_URL)
        key = (api_key or env.get("TINKER_API_KEY") or "").strip()
        known = {name: value for name, value in settings.items() if value is not None}
        unknown = known.keys() - set(cls.__slots__)
        if unknown:
            raise InvalidArgumentError(f"no such setting: {', '.join(sorted(unknown))}")
        defaults: dict[str, Any] = {
            "credential_command": env.get("TINKER_CREDENTIAL_CMD") or None,
            "tags": tuple(tag for tag in env.get("TINKER_TAGS", "").split(",") if tag),
            "telemetry": _is_on(env, "TINKER_TELEMETRY", default=True),
            "ca_file": env.get("TINKEX_CA_FILE") or env.get("SSL_CERT_FILE") or None,
            "proxy": _proxy(url, env),
            "no_proxy": env.get("no_proxy") or env.get("NO_PROXY") or "",
            "tokenizer_dir": env.get("TINKER_TOKENIZER_DIR") or None,
            "local_models": tuple(each for each in env.get("TINKEX_MODEL", "").split(",") if each)
            or ("nano",),
            "offline": _is_on(env, "TINKEX_OFFLINE", default=_is_on(env, "HF_HUB_OFFLINE", default=False)),
        }
        return cls(
            base_url=url,
            api_key=Secret(key) if key else None,
            project_id=project_id or env.get("TINKER_PROJECT_ID") or None,
            headers={**_cloudflare(env), **(headers or {})},
            **{**defaults, **known},
        )

    def with_(self, **changes: Any) -> Config:
        """The same with some settings changed."""
        return replace(self, **changes)

    @property
    def proxied(self) -> str | None:
        """The proxy for this server, unless it is on the list of those reached directly."""
        if self.proxy is None or _exempt(self.base_url, self.no_proxy):
            return None
        return self.proxy

    def __getstate__(self) -> list[Any]:
        if self.api_key or self.headers or self.proxy or self.credential_command:
            raise TypeError("a Config with credentials is not pickled; the receiver must have its own")
        return [getattr(self, each.name) for each in fields(self)]


def _is_on(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    return text in _ON if text else default


def _proxy(url: str, env: Mapping[str, str]) -> str | None:
    scheme = "https" if url.startswith("https") else "http"
    for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"):
        if env.get(name):
            return env[name]
    return None


def is_this_machine(url: str) -> bool:
    """Whether an address is of a server on this machine."""
    host = "localhost" if url == LOCAL else urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _exempt(url: str, listed: str) -> bool:
    """Whether an entry of NO_PROXY (`*`, a domain, an address or network, each with a port or not) fits."""
    if url == LOCAL:
        return True
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    for entry in listed.lower().replace(",", " ").split():
        found = _ENTRY.fullmatch(entry)
        if entry == "*" or (found and int(found["port"] or port) == port and _within(host, found["name"])):
            return True
    return False


_ENTRY = re.compile(r"\[?(?P<name>[^\[\]:]+|[0-9a-f:.]*:[0-9a-f:.]*(?:/\d+)?)\]?(?::(?P<port>\d+))?")


def _within(host: str, listed: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(listed, strict=False)
    except ValueError:  # not both are addresses
        name = listed.removeprefix("*").lstrip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))


def _cloudflare(env: Mapping[str, str]) -> dict[str, str]:
    names = {
        "CF-Access-Client-Id": "CLOUDFLARE_ACCESS_CLIENT_ID",
        "CF-Access-Client-Secret": "CLOUDFLARE_ACCESS_CLIENT_SECRET",
    }
    return {header: env[name] for header, name in names.items() if env.get(name)}
