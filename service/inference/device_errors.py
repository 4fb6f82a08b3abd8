"""What a failing device raises, told apart: no memory for this batch, or no device any more."""

from collections.abc import Callable
from typing import TypeVar

import torch

from service.errors import OutOfMemory

Result = TypeVar("Result")

FULL = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator")
"""In messages of allocations outside torch's own allocator for a device."""

LOST = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error [CUDA]")
"""How messages of a device begin where torch raises a plain RuntimeError; after any of these, a
CUDA context may give wrong answers or none.
"""


class DeviceFailed(Exception):  # noqa: N818 - told of the device, not of a request
    """The device can no longer be trusted; only a new process gets it back."""


def with_device_errors(run: Callable[[], Result]) -> Result:
    """What `run` returns. Raises OutOfMemory and DeviceFailed for what a device raises.

    They are raised outside the handler: a traceback would keep the batch's tensors in memory.
    """
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        full, lost = is_full(error), is_lost(error)
        if not full and not lost:
            raise
        told = str(error).partition("\n")[0]
    if full:
        raise OutOfMemory("the device had no memory for this image")
    raise DeviceFailed(told)


def is_full(error: Exception) -> bool:
    """Whether the error says that memory ran out, after which the device is as good as before."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in FULL)


def is_lost(error: Exception) -> bool:
    """Whether the error is the device's own."""
    return isinstance(error, torch.AcceleratorError) or str(error).startswith(LOST)
