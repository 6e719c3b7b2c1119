"""The server and the key: is there one, does it answer, does it take the key, what does it offer?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from ...config import DEFAULT_BASE_URL, Config
from ...errors import AuthenticationError, TinkerError
from ...net.credentials import find_credential
from ..advice import told
from . import Check

__all__ = ["checks"]


def checks(config: Config, *, asked_for: bool = False) -> Iterator[Check]:
    """Look at the key and the server; one that was not asked for is only warned of."""
    chosen = asked_for or bool(os.environ.get("TINKER_BASE_URL"))
    key = _key(config, chosen)
    yield key
    if key.status != "ok":
        return
    if config.proxied:
        yield Check(
            "proxy", "ok", f"{config.base_url} is reached through a proxy", "NO_PROXY lists exceptions"
        )
    yield from _answers(config)


def _key(config: Config, chosen: bool) -> Check:
    if config.base_url == "local":
        return Check("key", "ok", "a server of one's own has its own")
    try:
        find_credential(config)
    except TinkerError as error:
        if chosen or config.base_url != DEFAULT_BASE_URL:
            return Check("key", "fail", str(error), "`tinkex auth login`, or set TINKER_API_KEY")
        hint = "`tinkex serve --model nano` runs a server here; `tinkex auth login` is for the hosted one"
        return Check("key", "warn", "none, and no server is named", hint)
    return Check("key", "ok", f"from {_source(config)}")


def _source(config: Config) -> str:
    if config.api_key is not None:
        return "TINKER_API_KEY"
    return "TINKER_CREDENTIAL_CMD" if config.credential_command else "`tinkex auth login`"


def _answers(config: Config) -> Iterator[Check]:
    from ...client.access import check_access
    from ...client.service import ServiceClient

    began = time.perf_counter()
    try:
        check_access(config)
    except AuthenticationError as error:
        yield Check("server", "ok", f"{config.base_url} answers")
        yield Check("access", "fail", "the server does not take the key", told(error).hint)
        return
    except TinkerError as error:
        problem = told(error)
        hint = "is it running? `tinkex serve` starts one; TINKER_BASE_URL names another"
        yield Check("server", "fail", problem.message, hint)
        return
    took = time.perf_counter() - began
    yield Check("server", "ok", f"{config.base_url} answers ({took * 1000:.0f} ms) and takes the key")
    try:
        with ServiceClient(config=config) as client:
            offered = [each.model_name or "?" for each in client.get_server_capabilities().supported_models]
    except TinkerError as error:
        yield Check("base models", "fail", told(error).message)
        return
    if not offered:
        yield Check("base models", "warn", "the server offers none")
        return
    more = f" and {len(offered) - 5} more" if len(offered) > 5 else ""
    yield Check("base models", "ok", ", ".join(offered[:5]) + more)
