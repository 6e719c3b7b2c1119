"""`tinker://` paths and the ids that servers and clients must spell alike."""

from __future__ import annotations

import re
from typing import Final

from ..errors import InvalidArgumentError
from ..types.checkpoint import KINDS, SCHEME, CheckpointType, ParsedCheckpointTinkerPath
from ..types.rules import shown

__all__ = [
    "check_model_path",
    "check_name",
    "clone_of",
    "model_id",
    "parse",
    "sample_id",
    "sampling_session_id",
    "tinker_path",
]

SEGMENTS: dict[CheckpointType, str] = {kind: segment for segment, kind in KINDS.items()}
CLONE_BLOCK = 1_000_000_000  # a clone's sample numbers start at its id times this
NAME = r"(?!\.{1,2}$)[A-Za-z0-9_.:=@+,~-]{1,255}"  # a checkpoint's name, as a regular expression
_NAME = re.compile(NAME)

parse: Final = ParsedCheckpointTinkerPath.from_tinker_path


def check_name(name: object) -> str:
    """A checkpoint name fit for one path segment, or a refusal that says what is allowed."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"checkpoint name: {shown(name)} is not allowed; use 1 to 255 of "
            "A-Z a-z 0-9 _ . : = @ + , ~ - and no slash"
        )
    return name


def check_model_path(path: object) -> str:
    """A path to sample from: only the scheme is checked here, servers may have more forms."""
    if not isinstance(path, str) or not path.startswith(SCHEME):
        raise InvalidArgumentError(f"model_path: {shown(path)} does not start with {SCHEME}")
    return path


def tinker_path(run: str, kind: CheckpointType, name: str) -> str:
    """The path of a checkpoint."""
    if not run or "/" in run:
        raise InvalidArgumentError(f"training run id: {shown(run)} must be set and hold no slash")
    return f"{SCHEME}{run}/{SEGMENTS[kind]}/{check_name(name)}"


def model_id(session_id: str, model_seq_id: int) -> str:
    """The id of a session's n-th model; clients may compute it themselves."""
    return f"{session_id}:train:{model_seq_id}"


def sampling_session_id(session_id: str, sampling_session_seq_id: int) -> str:
    """The id of a session's n-th sampling session."""
    return f"{session_id}:sample:{sampling_session_seq_id}"


def sample_id(sampling_session: str, seq_id: int) -> str:
    """The ticket of one sample."""
    return f"{sampling_session}:{seq_id}"


def clone_of(seq_id: int) -> int:
    """Which clone of a sampling session a sample number belongs to."""
    return seq_id // CLONE_BLOCK
