"""Sampling clients in other processes: handles and pickles, both without a credential by default."""

from __future__ import annotations

import base64
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import Config, Secret, is_this_machine, normalize_url
from ..errors import InvalidArgumentError
from ..net.locks import new_lock
from ..types.service import ClientConfigResponse, ClientDynamicConfigResponse
from .connection import Connection
from .local_server import join_again
from .session import Session

if TYPE_CHECKING:
    from .sampling import SamplingClient

__all__ = ["make_handle", "pickled", "read_handle"]

# Copies of one session in one process share its heartbeat.
_sessions: weakref.WeakValueDictionary[Any, Session] = weakref.WeakValueDictionary()
_lock = new_lock()
_SECRET_WORDS = ("auth", "cookie", "key", "password", "secret", "token")


def _state(client: SamplingClient, *, with_credential: bool) -> dict[str, Any]:
    connection = client.holder.connection
    config = connection.config
    headers = {
        name: value
        for name, value in config.headers.items()
        if with_credential or not any(word in name.lower() for word in _SECRET_WORDS)
    }
    key = config.api_key.reveal() if with_credential and config.api_key is not None else None
    return {
        "session_id": client.holder.known_id,
        "sampling_session_id": client.sampling_session_id,
        "holder": {
            "base_url": config.base_url,
            "default_headers_overrides": headers,
            "client_config": connection.known_settings.model_dump(),
            "client_dynamic_config": connection.dynamic.model_dump(),
            "api_key": key,
            # Where the key of a server of one's own lies; nobody else's client could use it.
            **({"local_state": config.local_state} if config.local_state is not None else {}),
        },
        "record_stability_info": client.record_stability_info,
    }


def make_handle(client: SamplingClient) -> str:
    """The client's state as URL-safe text."""
    raw = msgspec.json.encode(_state(client, with_credential=False))
    return base64.urlsafe_b64encode(raw).decode()


def read_handle(handle: str, api_key: str | None) -> SamplingClient:
    """A client from that text."""
    try:
        state = msgspec.json.decode(base64.urlsafe_b64decode(handle))
    except (ValueError, TypeError):
        raise InvalidArgumentError("this is not a sampler handle, or it is cut off") from None
    try:
        if api_key is None:
            _check_server(state["holder"])
        return _restore(state, api_key, None)
    except (KeyError, TypeError, AttributeError):
        raise InvalidArgumentError("this is not a sampler handle: something is missing") from None


def _check_server(held: dict[str, Any]) -> None:
    """Refuse a handle that would have this process's own key sent to a server it does not use."""
    url, own = normalize_url(held["base_url"]), Config.resolve().base_url
    if url != own and not held.get("api_key") and not is_this_machine(url):
        raise InvalidArgumentError(
            f"this handle is of {url}, and your credential is for {own}: name the server in "
            "TINKER_BASE_URL, or pass api_key=… for it"
        )


def pickled(client: SamplingClient) -> Any:
    """What pickling a client stores."""
    state = _state(client, with_credential=client.pickle_credentials)
    return _restore, (state, None, client.retry_config)


def _restore(state: dict[str, Any], api_key: str | None, retry_config: Any) -> SamplingClient:
    from .sampling import SamplingClient

    held = state["holder"]
    config = Config.resolve(
        base_url=held["base_url"],
        api_key=api_key or held.get("api_key"),
        headers=held.get("default_headers_overrides") or {},
    )
    if held.get("local_state") and config.api_key is None and is_this_machine(config.base_url):
        config = join_again(config, held["local_state"])
    session_id = state["session_id"]
    digest = (config.api_key or Secret("")).digest
    with _lock:
        session = _sessions.get((config.base_url, digest, session_id))
        if session is None:
            connection = Connection(
                config,
                settings=ClientConfigResponse.model_validate(held.get("client_config") or {}),
                dynamic=ClientDynamicConfigResponse.model_validate(held.get("client_dynamic_config") or {}),
            )
            session = Session(connection, session_id=session_id)
            _sessions[(config.base_url, digest, session_id)] = session
    return SamplingClient(
        session,
        sampling_session_id=state["sampling_session_id"],
        shadow=True,
        retry_config=retry_config,
        record_stability_info=bool(state.get("record_stability_info")),
    )
