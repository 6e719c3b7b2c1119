"""Three ways to run a kernel: on a GPU, interpreted on a CPU, or only compiled for a GPU that is not there.

The second and the third need Triton, but no GPU: `test_kernels_without_gpu.py` starts them.
"""

from __future__ import annotations

import importlib.util
import os

import torch

COMPILE_FOR = "TINKEX_COMPILE_KERNELS_FOR"
"""A compute capability (90: Hopper): kernels are compiled for it and not run."""

if importlib.util.find_spec("triton") is None:
    MODE = ""
elif os.environ.get("TRITON_INTERPRET") == "1":
    MODE = "interpreted"
elif os.environ.get(COMPILE_FOR):
    MODE = "compiled"
else:
    MODE = "gpu" if torch.cuda.is_available() else ""

DEVICE = "cuda" if MODE == "gpu" else "cpu"
HALF = torch.float32 if MODE == "interpreted" else torch.bfloat16
"""What weights and activations are kept in; the interpreter computes in float32."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float64: 1e-4}


def compile_only(capability: int) -> None:
    """Have every launch from now on compile its kernel and go no further."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import JITFunction, driver

    class Absent:
        """A device that is only known by its architecture."""

        def get_current_target(self):
            return GPUTarget("cuda", capability, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device=None):
            return 0

        def get_active_torch_device(self):
            return torch.device("cpu")

    driver.set_active(Absent())
    launch = JITFunction.run

    def compile_it(self, *args, grid, warmup, **options):
        found = launch(self, *args, grid=grid, warmup=True, **options)
        assert found.asm["cubin"], self
        COMPILED.append(self.__name__)
        return found

    JITFunction.run = compile_it


COMPILED: list[str] = []
"""The kernels compiled so far."""
if MODE == "compiled":
    compile_only(int(os.environ[COMPILE_FOR]))


def agree(found: torch.Tensor, wanted: torch.Tensor, tolerance: float | None = None) -> None:
    """Check a result against its reference, by the largest value; nothing was computed in compiled mode."""
    assert found.shape == wanted.shape
    if MODE == "compiled":
        return
    error = (found.double() - wanted.double()).abs().max()
    largest = wanted.double().abs().max().clamp(min=1.0)
    bound = CLOSE[found.dtype] if tolerance is None else tolerance
    assert error <= bound * largest, f"{float(error):.2e} of {float(largest):.2e}"
