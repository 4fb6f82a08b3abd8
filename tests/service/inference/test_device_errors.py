"""Which of torch's errors mean a full device, which a lost one, and which neither."""

import gc
import weakref

import pytest
import torch

from eulerlora_client.contract.problems import OutOfMemory
from service.inference.device_errors import DeviceFailed, with_device_errors

FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]
LOST = [
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors ..."),
    torch.AcceleratorError("an error of another accelerator"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    RuntimeError("CUDA driver error: unknown error"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]
NEITHER = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    RuntimeError("expected no CUDA error"),
    ValueError("CUDA error: told by somebody else"),
]


def raising(error: Exception) -> None:
    def run() -> None:
        raise error

    with_device_errors(run)


def test_what_runs_well_is_returned() -> None:
    assert with_device_errors(lambda: 7) == 7


@pytest.mark.parametrize("error", FULL, ids=repr)
def test_no_memory_is_told_without_a_word_of_torch(error: Exception) -> None:
    with pytest.raises(OutOfMemory) as raised:
        raising(error)
    assert raised.value.detail == "the device had no memory for this image"


def test_a_cpu_without_memory_is_no_lost_device() -> None:
    with pytest.raises(OutOfMemory):
        with_device_errors(lambda: torch.empty(10**16))


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_a_lost_device_is_told_in_one_line(error: Exception) -> None:
    with pytest.raises(DeviceFailed) as raised:
        raising(error)
    assert str(raised.value) == str(error).splitlines()[0]


@pytest.mark.parametrize("error", NEITHER, ids=repr)
def test_any_other_error_is_left_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        raising(error)
    assert raised.value is error


def test_the_tensors_of_a_failed_batch_are_free_while_its_error_is_handled() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def run() -> None:
        batch = torch.zeros(10)
        held.append(weakref.ref(batch))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    try:
        with_device_errors(run)
    except OutOfMemory as problem:
        gc.collect()
        assert held[0]() is None
        assert problem.__context__ is None
    else:
        pytest.fail("nothing was raised")
