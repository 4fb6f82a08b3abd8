"""Transfers and streams; those of a CUDA device where there is one."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from eulerlora.nn.device import download, stream_of_thread, upload, upload_stack

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=NEEDS_GPU)]


def values(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_values_come_back_from_a_device_as_they_were(device: torch.device) -> None:
    first, second = values(3, 2), values(3, 5)
    actual = download(upload(first, device), upload(second, device))
    assert [one.device.type for one in actual] == ["cpu", "cpu"]
    assert torch.equal(actual[0], first)
    assert torch.equal(actual[1], second)
    assert not any(one.is_pinned() for one in actual)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_stack_has_its_parts_in_order(device: torch.device) -> None:
    images = values(4, 3, 8, 8)
    stacked = upload_stack(list(images), device)
    assert stacked.device.type == device.type
    assert torch.equal(stacked.cpu(), images)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_threads_with_streams_of_their_own_get_the_results_of_one(device: torch.device) -> None:
    def product(index: int) -> Tensor:
        with stream_of_thread(device):
            matrix = upload_stack([values(64) * index] * 64, device)
            return download(matrix @ matrix)[0]

    with ThreadPoolExecutor(2) as threads:
        for index, actual in enumerate(threads.map(product, range(8))):
            torch.testing.assert_close(actual, product(index))


def test_the_streams_of_two_threads_differ_and_that_of_a_thread_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: [device])
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)

    def streams(_: int) -> tuple[object, ...]:
        device = torch.device("cuda", 7)
        return stream_of_thread(device), stream_of_thread(device)

    ours = streams(0)
    with ThreadPoolExecutor(1) as thread:
        (theirs,) = thread.map(streams, range(1))
    assert ours[0] is ours[1]
    assert theirs[0] is theirs[1]
    assert ours[0] is not theirs[0]
    assert ours[0] == [torch.device("cuda", 7)]


def test_cuda_copies_are_asked_for_from_page_locked_memory_and_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA's calls are carried out on the CPU, and listed; the tests above need a device."""
    calls: list[str] = []
    locked: list[Tensor] = []
    empty = torch.empty

    def lock(tensor: Tensor) -> Tensor:
        locked.append(tensor)
        return tensor

    def empty_values(*shape: int, dtype: torch.dtype, pin_memory: bool) -> Tensor:
        tensor = empty(*shape, dtype=dtype)
        return lock(tensor) if pin_memory else tensor

    def copied(tensor: Tensor, device: torch.device | str, non_blocking: bool = False) -> Tensor:
        memory = "locked" if any(tensor is one for one in locked) else "pageable"
        calls.append(f"{memory} to {device}{' at once' if non_blocking else ''}")
        return tensor.clone()

    def stream(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: calls.append(f"wait for {device}"))

    monkeypatch.setattr(torch, "empty", empty_values)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: lock(tensor.clone()))
    monkeypatch.setattr(Tensor, "to", copied)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    cuda = torch.device("cuda")

    first, second = values(3, 2).double(), values(3, 5).double()
    assert torch.equal(upload(first, cuda), first)
    for parts in ([first], [first, first + 1]):
        assert torch.equal(upload_stack(parts, cuda), torch.stack(parts))
    assert calls == ["locked to cuda at once"] * 3
    calls.clear()
    monkeypatch.setattr(Tensor, "is_cuda", True)
    upload(first, cuda)
    actual = download(first, second)
    assert calls == ["pageable to cuda", "pageable to cpu at once", "wait for cpu"]
    assert torch.equal(actual[0], first)
    assert torch.equal(actual[1], second)
    storages = {one.untyped_storage().data_ptr() for one in actual}
    assert len(storages) == len(actual)  # none holds the memory of the transfer
