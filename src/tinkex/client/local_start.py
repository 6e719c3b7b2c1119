"""`ServiceClient.local()`: a client and the server it talks to in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from ..config import LOCAL, Config

__all__ = ["WithLocalServer"]


class WithLocalServer:
    """A client that can be made together with its server."""

    @classmethod
    def local(
        cls,
        model: str | Sequence[str] = "nano",
        *,
        state: str | Path | None = None,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """A client of a server on this machine, which is started if it does not run yet; blocks meanwhile.

        `model` is one or several of what `tinkex serve --model` takes: a name (see `tinkex models list`), a
        folder, or `NAME=FOLDER`. Whoever asks for the same models on this machine shares the server, and it
        stops with the last process that uses it. Checkpoints stay in its state folder, which `state`
        changes; `options` are more arguments of `tinkex serve`, `settings` those of `Config.resolve`.
        """
        config = Config.resolve(
            base_url=LOCAL,
            local_models=(model,) if isinstance(model, str) else tuple(model),
            local_state=None if state is None else str(state),
            local_options=tuple(options),
            **settings,
        )
        make: Callable[..., Self] = cls
        return make(config=config)

    @classmethod
    async def local_async(
        cls,
        model: str | Sequence[str] = "nano",
        *,
        state: str | Path | None = None,
        options: Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """The same without blocking the event loop."""
        return await asyncio.to_thread(cls.local, model, state=state, options=options, **settings)
