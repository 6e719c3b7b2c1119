"""Every room of handlers, imported so that they register themselves."""

from __future__ import annotations

from . import (
    handlers_admin,
    handlers_auth,
    handlers_checkpoints,
    handlers_copies,
    handlers_downloads,
    handlers_futures,
    handlers_runs,
    handlers_sampling,
    handlers_service,
    handlers_sessions,
    handlers_tokenizers,
    handlers_training,
)

ROOMS = (
    handlers_admin,
    handlers_auth,
    handlers_checkpoints,
    handlers_copies,
    handlers_downloads,
    handlers_futures,
    handlers_runs,
    handlers_sampling,
    handlers_service,
    handlers_sessions,
    handlers_tokenizers,
    handlers_training,
)
