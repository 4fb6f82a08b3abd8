"""Copies between a CPU and a device, without waiting where the device can work meanwhile.

On a CUDA device, uploads come from page-locked memory and return at once, and everything that a
thread does within `stream_of_thread` is ordered by itself: while the device computes the batch of
one thread, that of another one is uploaded. Other devices have no streams; values are copied as
they are.

`upload` and `upload_stack` copy values to a device. `download` copies matrices with equal numbers
of rows to the CPU by one transfer, and returns when they are there. All keep every bit.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

__all__ = ["download", "stream_of_thread", "upload", "upload_stack"]


class _Streams(threading.local):
    def __init__(self) -> None:
        self.by_device: dict[torch.device, torch.cuda.Stream] = {}


_streams = _Streams()


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Values on a device; those that are there already are not copied."""
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def upload_stack(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Tensors of the CPU with equal shape and type, stacked on a device."""
    if device.type != "cuda":
        return torch.stack(list(parts)).to(device)
    pinned = torch.empty(len(parts), *parts[0].shape, dtype=parts[0].dtype, pin_memory=True)
    return torch.stack(list(parts), out=pinned).to(device, non_blocking=True)


def download(*matrices: Tensor) -> list[Tensor]:
    """Matrices (rows, ...) of one device and type on the CPU."""
    first = matrices[0]
    if not first.is_cuda:
        return [values.cpu() for values in matrices]
    joined = torch.cat(matrices, dim=1).to("cpu", non_blocking=True)
    torch.cuda.current_stream(first.device).synchronize()
    parts = joined.split([values.shape[1] for values in matrices], dim=1)
    return [part.clone() for part in parts]  # holds no page-locked memory


def stream_of_thread(device: torch.device) -> AbstractContextManager[object]:
    """Runs the block on the CUDA stream of this thread, which every thread has for itself."""
    if device.type != "cuda":
        return nullcontext()
    streams = _streams.by_device
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return torch.cuda.stream(streams[device])
