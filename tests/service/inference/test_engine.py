"""Inference on a device, its errors, and the served models."""

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import pytest
import torch

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora.settings import Draw
from eulerlora_contract.problems import OutOfMemory
from service.inference.engine import (
    DeviceFailed,
    InferenceItem,
    ServedModel,
    ServedModels,
)
from tests.problems import raises_problem

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


@pytest.fixture
def run(model: EulerLoRA, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Runs a batch with a forward pass in the place of that of the network."""

    def infer(forward: Callable[..., Any]) -> None:
        monkeypatch.setattr("service.inference.engine.predict_images", forward)
        ServedModel(model).infer([InferenceItem(torch.zeros(3, 32, 32), Draw())])

    return infer


def failing(error: Exception) -> Callable[..., NoReturn]:
    def forward(*_: object) -> NoReturn:
        raise error

    return forward


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=repr)
def test_an_allocation_error_does_not_pass_on_the_message_of_torch(run, error: Exception) -> None:
    with raises_problem("out_of_memory") as raised:
        run(failing(error))
    assert raised.value.detail == "the device had no memory for this image"


def test_an_allocation_that_the_cpu_refuses_is_out_of_memory(run) -> None:
    with raises_problem("out_of_memory"):
        run(lambda *_: torch.empty(2**60, dtype=torch.uint8))


@pytest.mark.parametrize("error", LOST_DEVICE, ids=repr)
def test_a_lost_device_keeps_the_first_line_of_the_message(run, error: Exception) -> None:
    with pytest.raises(DeviceFailed) as raised:
        run(failing(error))
    assert str(raised.value) == str(error).splitlines()[0]


@pytest.mark.parametrize("error", OTHER, ids=repr)
def test_any_other_error_is_raised_unchanged(run, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        run(failing(error))
    assert raised.value is error


def test_the_tensors_of_a_failed_batch_are_freed_while_its_error_is_handled(run) -> None:
    references: list[weakref.ref[torch.Tensor]] = []

    def forward(_: object, pixels: torch.Tensor, *__: object) -> NoReturn:
        references.append(weakref.ref(pixels))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    try:
        run(forward)
    except OutOfMemory as problem:
        gc.collect()
        assert references[0]() is None
        assert problem.__context__ is None
    else:
        pytest.fail("nothing was raised")


@pytest.fixture(scope="module")
def items() -> list[InferenceItem]:
    """Five images with different draws."""
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    draws = [
        Draw(),
        Draw(mode="stoch", samples=1, seed=1),
        Draw(mode="stoch", samples=5, seed=2),
        Draw(seed=3),
        Draw(mode="stoch", samples=2, seed=2**32 - 1),
    ]
    return [InferenceItem(image, draw) for image, draw in zip(images, draws, strict=True)]


def infer(engine: ServedModel, items: list[InferenceItem]) -> list[torch.Tensor]:
    """The log-probabilities of the engine's outputs."""
    return [output.flat_log_probabilities[0] for output in engine.infer(items)]


def assert_equal(results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """The results agree up to rounding."""
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other, rtol=0, atol=1e-5)


def test_batches_that_run_at_the_same_time_do_not_affect_each_other(
    model: EulerLoRA, items
) -> None:
    engine = ServedModel(model)
    alone = infer(engine, items)
    with ThreadPoolExecutor(2) as threads:
        for results in threads.map(infer, [engine] * 8, [items] * 8):
            assert_equal(results, alone)


@pytest.fixture
def serve(make_network, make_config):
    """A served model: (name, revision) -> ServedModel."""

    def build(name: str, revision: str = "sha256:0") -> ServedModel:
        network = make_network()
        config = make_config(network, name=name)
        checkpoint = Checkpoint(network, config, revision)
        return ServedModel(EulerLoRA(checkpoint, torch.device("cpu")))

    return build


def test_a_replacement_keeps_name_and_order_and_does_not_change_a_held_model(serve) -> None:
    models = ServedModels([serve("a", "sha256:1"), serve("b", "sha256:1")])
    held, listed = models["a"], models.items()
    models.replace(serve("a", "sha256:2"))
    assert models.named("a") is models.named(None) is models["a"]
    assert [(name, served.model.revision) for name, served in listed] == [
        ("a", "sha256:2"),
        ("b", "sha256:1"),
    ]
    assert held.model.revision == "sha256:1"
    assert len(models) == 2
