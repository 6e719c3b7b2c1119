"""All targets there are: what this machine has the libraries for."""

from __future__ import annotations

from .running import Target


def known() -> list[Target]:
    """Every target, in order."""
    from . import (
        engine_targets,
        file_targets,
        http_targets,
        net_targets,
        server_targets,
        state_targets,
        wire_targets,
    )

    rooms = (
        wire_targets, net_targets, http_targets, server_targets, file_targets, state_targets,
        engine_targets,
    )  # fmt: skip
    return [target for room in rooms for target in room.TARGETS]
