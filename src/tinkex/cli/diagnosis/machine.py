"""The machine: its device for models, its processors, and how many files may be open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from . import Check

__all__ = ["checks"]

FEW_FILES = 4096
_SECONDS = 120.0
# PyTorch is looked at from a process of its own: it is slow to load, and a broken one may crash.
_PROGRAM = """
import json, torch
cuda = torch.cuda.is_available()
found = {"version": torch.__version__, "kind": "cpu", "name": "", "bytes": 0}
if cuda:
    properties = torch.cuda.get_device_properties(0)
    found |= {"kind": "cuda", "name": properties.name, "bytes": properties.total_memory,
              "count": torch.cuda.device_count()}
elif torch.backends.mps.is_available():
    found["kind"] = "mps"
print(json.dumps(found))
"""


def checks() -> Iterator[Check]:
    """Look at the machine."""
    yield _device()
    yield _files()


def _device() -> Check:
    cores = f"{_cores()} cores"
    if find_spec("torch") is None:
        return Check("device", "warn", f"{cores}; no PyTorch, so no model can run here",
                     'pip install "tinkex[server]", or use a server elsewhere')  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-P", "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        found = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[-1]
        return Check(
            "device", "fail", f"PyTorch does not load: {last}", "install it anew: pip install torch"
        )
    except (subprocess.TimeoutExpired, ValueError):
        return Check("device", "warn", f"PyTorch did not load within {_SECONDS:.0f} s")
    if found["kind"] == "cuda":
        memory = f"{found['bytes'] / 2**30:.0f} GiB"
        text = f"{found['count']} × {found['name']} with {memory}, torch {found['version']}, {cores}"
        return Check("device", "ok", text)
    return Check("device", "ok", f"{found['kind']}, torch {found['version']}, {cores}")


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def _files() -> Check:
    try:
        import resource
    except ImportError:  # no such limit on this platform
        return Check("open files", "ok", "not limited")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, hard) if hard != resource.RLIM_INFINITY else FEW_FILES
    if 0 <= most < FEW_FILES:
        return Check(
            "open files", "warn", f"at most {most:,} files and connections at a time", "ulimit -n 65536"
        )
    return Check("open files", "ok", f"{soft:,}")
