"""Addresses of pages in the hosted service's console."""

from __future__ import annotations

from urllib.parse import quote, urlencode

_BASE = "https://tinker.thinkingmachines.ai"


def new_key_url(name: str) -> str:
    """Where to make an API key, with its name filled in."""
    return f"{_BASE}/keys?{urlencode({'new_key': 'true', 'key_name': name})}"


def sessions_url() -> str:
    """The list of sessions."""
    return f"{_BASE}/sessions"


def session_url(session_id: str) -> str:
    """One session."""
    return f"{_BASE}/sessions/{session_id}"


def training_run_url(training_run_id: str) -> str:
    """One training run."""
    return f"{_BASE}/training_runs/{training_run_id}"


def checkpoint_url(training_run_id: str, checkpoint_id: str) -> str:
    """One checkpoint."""
    return f"{_BASE}/checkpoints/{quote(training_run_id, safe='')}/{quote(checkpoint_id, safe='')}"


def playground_url(tinker_path: str) -> str:
    """A page to talk to a checkpoint."""
    return f"{_BASE}/playground?mode=checkpoint&checkpoint={quote(tinker_path, safe='')}"
