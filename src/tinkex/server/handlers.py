"""Every room of handlers, imported so that they register themselves."""

from __future__ import annotations

from . import handlers_futures, handlers_sampling, handlers_service, handlers_training

ROOMS = (handlers_futures, handlers_sampling, handlers_service, handlers_training)
