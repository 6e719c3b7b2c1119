"""The kernels where there is no GPU: interpreted on the CPU, alone and in the decoder that calls them, and
compiled for the GPUs they are meant for.

Triton is large and of no use without a GPU otherwise, so it is installed for these tests alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..matrix.sdks import CHOSEN, pip
from .kernel_modes import COMPILE_FOR

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WANTED = ("triton==3.6.0", "numpy==2.2.6")
"""The interpreter of this version needs a numpy of its time."""


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Triton."""
    if sys.platform != "linux":
        pytest.skip("Triton is for Linux")
    folder = Path(CHOSEN or tmp_path_factory.mktemp("triton")) / sys.implementation.cache_tag / "triton"
    if not folder.is_dir():
        pip("install", "--quiet", "--no-deps", "--target", str(folder), *WANTED)
    return folder


def run(triton: Path, folder: Path, file: str, **settings: str) -> int:
    """Run a file of tests that must pass; how many did."""
    path = os.pathsep.join([str(triton), str(ROOT / "src")])
    known = {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "--noconftest", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"tests/engine/{file}"],
        cwd=ROOT,
        env={**os.environ, **known, **settings},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    return int(passed[1])


@pytest.mark.parametrize("capability", ["80", "90", "100"])
def test_kernels_compile(triton: Path, tmp_path: Path, capability: str) -> None:
    assert run(triton, tmp_path, "test_kernels.py", **{COMPILE_FOR: capability}) > 30


def test_kernels_interpreted(triton: Path, tmp_path: Path) -> None:
    assert run(triton, tmp_path, "test_kernels.py", TRITON_INTERPRET="1") > 30


def test_decoder_interpreted(triton: Path, tmp_path: Path) -> None:
    assert run(triton, tmp_path, "test_fused_interpreted.py", TRITON_INTERPRET="1") > 20
