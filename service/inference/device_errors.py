"""Classification of device errors: out of memory, or a lost device."""

from collections.abc import Callable
from typing import TypeVar

import torch

from eulerlora_client.contract.problems import OutOfMemory

Result = TypeVar("Result")

OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator")
"""Parts of the messages of allocation errors that torch raises as a plain RuntimeError."""

LOST_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error", "Triton Error [CUDA]")
"""Prefixes of the messages of device errors that torch raises as a plain RuntimeError. After one of
them, the results of a CUDA context are undefined.
"""


class DeviceFailed(Exception):  # noqa: N818 - describes the device, not a request
    """The device is lost; only a new process can use it again."""


def with_device_errors(run: Callable[[], Result]) -> Result:
    """Returns the result of `run`. Raises OutOfMemory or DeviceFailed for a device's error.

    Both are raised outside the `except` block: a traceback would keep the batch's tensors alive.
    """
    try:
        return run()
    except (RuntimeError, MemoryError) as error:
        out_of_memory, lost = is_out_of_memory(error), is_lost_device(error)
        if not out_of_memory and not lost:
            raise
        message = str(error).partition("\n")[0]
    if out_of_memory:
        raise OutOfMemory("the device had no memory for this image")
    raise DeviceFailed(message)


def is_out_of_memory(error: Exception) -> bool:
    """Returns True if an allocation failed; the device stays usable."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(part in str(error) for part in OUT_OF_MEMORY)


def is_lost_device(error: Exception) -> bool:
    """Returns True if the device itself failed."""
    return isinstance(error, torch.AcceleratorError) or str(error).startswith(LOST_DEVICE)
