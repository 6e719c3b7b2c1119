"""`tinkex serve` with an engine that computes nothing: the same process, settings and files otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tinkex.server import config_file
from tinkex.server.assembly import assemble
from tinkex.server.serve import run
from tinkex.testing import DirectLink, NoopEngine


def _link(folder: Path, epoch: int, deliver: Any, lost: Any) -> DirectLink:
    return DirectLink(lambda: NoopEngine(epoch, context=512), epoch, deliver, lost)


async def _make(options: Any, keys: Any, url: str, ready: Any, folders: Any) -> Any:
    return await assemble(options, keys, url, ready, folders, make_link=_link)


if __name__ == "__main__":
    os.umask(0)
    sys.exit(run(config_file.build(config_file.from_environment(os.environ)), mode="json", make=_make))
