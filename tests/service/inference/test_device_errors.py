"""Classification of torch's errors: out of memory, lost device, or neither."""

import gc
import weakref

import pytest
import torch

from eulerlora_client.contract.problems import OutOfMemory
from service.inference.engine import DeviceFailed, with_device_errors

OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]
LOST_DEVICE = [
    torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors ..."),
    torch.AcceleratorError("an error of another accelerator"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    RuntimeError("CUDA driver error: unknown error"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]
OTHER = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    RuntimeError("expected no CUDA error"),
    ValueError("CUDA error: raised by other code"),
]


def raising(error: Exception) -> None:
    def run() -> None:
        raise error

    with_device_errors(run)


def test_a_result_is_returned() -> None:
    assert with_device_errors(lambda: 7) == 7


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_an_allocation_error_does_not_pass_on_the_message_of_torch(
    error: Exception,
) -> None:
    with pytest.raises(OutOfMemory) as raised:
        raising(error)
    assert raised.value.detail == "the device had no memory for this image"


def test_a_failed_allocation_on_the_cpu_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory):
        with_device_errors(lambda: torch.empty(10**16))


@pytest.mark.parametrize("error", LOST_DEVICE, ids=repr)
def test_a_lost_device_keeps_the_first_line_of_the_message(error: Exception) -> None:
    with pytest.raises(DeviceFailed) as raised:
        raising(error)
    assert str(raised.value) == str(error).splitlines()[0]


@pytest.mark.parametrize("error", OTHER, ids=repr)
def test_any_other_error_is_raised_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        raising(error)
    assert raised.value is error


def test_the_tensors_of_a_failed_batch_are_freed_while_its_error_is_handled() -> None:
    references: list[weakref.ref[torch.Tensor]] = []

    def run() -> None:
        batch = torch.zeros(10)
        references.append(weakref.ref(batch))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    try:
        with_device_errors(run)
    except OutOfMemory as problem:
        gc.collect()
        assert references[0]() is None
        assert problem.__context__ is None
    else:
        pytest.fail("nothing was raised")
