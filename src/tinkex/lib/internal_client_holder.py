"""The session behind the clients, under the official SDK's module path and name.

Code that only passes a holder on, or annotates with it, works; the official one's internals do not exist.
"""

from __future__ import annotations

from enum import Enum

from ..client.session import Session as InternalClientHolder

__all__ = ["ClientConnectionPoolType", "InternalClientHolder"]


class ClientConnectionPoolType(Enum):
    """What the official SDK keeps separate connections for; here these are the route table's lanes."""

    SESSION = "session"
    SAMPLE = "sample"
    TRAIN = "train"
    REST_SUPPORT_REDIRECT = "rest_support_redirect"
    RETRIEVE_PROMISE = "retrieve_promise"
    RETRIEVE_FUTURES = "retrieve_futures"
    TELEMETRY = "telemetry"
