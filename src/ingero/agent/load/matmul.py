"""A steady load: one matrix product after the other, on the GPU or on a stand-in for its library.

It gives a node something to measure. Real work goes through PyTorch; where there is no GPU, the
stand-in is called with the same names, so that probes, recorder and push see what they would see.
"""

import ctypes
import importlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ingero.errors import Unavailable

PRODUCTS_PER_STEP: Final = 20
STAND_IN_KERNEL_NS: Final = 500_000
_LIBRARY: Final = "libcudart.so"
_BYTES_PER_NUMBER: Final = 4
Step = Callable[[], None]


def gpu_matmul(size: int) -> tuple[str, Step]:
    """Return what the load runs on, and one step of it. Raises Unavailable without PyTorch or GPU.

    The matrices stay on the GPU; a step ends when its products are done.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise Unavailable("PyTorch is not installed here") from None
    if not torch.cuda.is_available():
        raise Unavailable("PyTorch finds no GPU here")
    left, right, product = (torch.rand(size, size, device="cuda") for _ in range(3))

    def step() -> None:
        for _ in range(PRODUCTS_PER_STEP):
            torch.matmul(left, right, out=product)
        torch.cuda.synchronize()

    return str(torch.cuda.get_device_name()), step


def stand_in_matmul(size: int, folder: Path = Path(__file__).parent) -> tuple[str, Step]:
    """Return the same load on the stand-in library. Raises Unavailable on other machines."""
    path = folder / platform.machine() / _LIBRARY
    try:
        runtime = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"no stand-in for {platform.machine()}: {error}") from None
    runtime.ingero_set_kernel_ns(ctypes.c_int64(STAND_IN_KERNEL_NS))
    for _ in range(3):
        runtime.cudaMalloc(
            ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size * size * _BYTES_PER_NUMBER)
        )
    blocks = max(size // 64, 1)

    def step() -> None:
        for _ in range(PRODUCTS_PER_STEP):
            runtime.cudaLaunchKernel(
                ctypes.c_void_p(1), _Dim3(blocks, blocks, 1), _Dim3(16, 16, 1),
                None, ctypes.c_size_t(0), None,
            )  # fmt: skip
        runtime.cudaStreamSynchronize(None)

    return "a stand-in for the CUDA runtime", step


class _Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))
