"""The engine: items in a batch get the result they get alone; the division of CPU cores."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from eulerlora.model import EulerLoRA
from eulerlora.nn.runtime import predict_rows
from eulerlora.settings import Draw
from service.inference.engine import MAX_WORKERS, CoreAllocation, Engine, InferenceItem


@pytest.fixture(autouse=True)
def restored_thread_count() -> Iterator[None]:
    """Restores torch's number of threads after a test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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


def infer(engine: Engine, items: list[InferenceItem]) -> list[torch.Tensor]:
    """Returns the log-probabilities of the engine's outputs."""
    return [output.log_probabilities for output in engine.infer(items)]


def assert_equal(results: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """The results agree up to rounding."""
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other, rtol=0, atol=1e-5)


def test_an_item_takes_one_row_for_each_adapter_and_sample(model: EulerLoRA, items) -> None:
    engine = Engine(model)
    assert [engine.rows(item.draw.samples) for item in items] == [2, 2, 10, 2, 4]
    shapes = [tuple(result.shape) for result in infer(engine, items)]
    assert shapes == [(2, 3), (2, 3), (10, 3), (2, 3), (4, 3)]


def test_results_are_log_probabilities_in_float64_on_the_cpu(model: EulerLoRA, items) -> None:
    for result in infer(Engine(model), items):
        assert result.dtype == torch.float64
        assert result.device.type == "cpu"
        assert torch.allclose(result.exp().sum(dim=-1), torch.ones(len(result)).double())


def test_an_item_in_a_mixed_batch_gets_the_result_it_gets_alone(model: EulerLoRA, items) -> None:
    engine = Engine(model)
    for item, result in zip(items, infer(engine, items), strict=True):
        alone = infer(engine, [item])[0]
        direct = predict_rows(model.network, item.pixels.unsqueeze(0), [item.draw])[0]
        torch.testing.assert_close(result, alone, rtol=0, atol=1e-5)
        assert torch.equal(alone, direct)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_image_without_a_finite_result_does_not_affect_the_others(
    model: EulerLoRA, items, value: float
) -> None:
    engine = Engine(model)
    bad = InferenceItem(torch.full((3, 32, 32), value), Draw(mode="stoch", samples=3, seed=5))
    first, nan, *others = infer(engine, [items[0], bad, *items[1:]])
    assert nan.shape == (6, 3)
    assert nan.isnan().all()
    assert_equal([first, *others], infer(engine, items))


def test_the_number_of_cores_does_not_change_a_result(model: EulerLoRA, items) -> None:
    engine, results = Engine(model), []
    for cores in (1, 2):
        torch.set_num_threads(cores)
        results.append(infer(engine, items))
    assert_equal(*results)


def test_batches_that_run_at_the_same_time_do_not_affect_each_other(
    model: EulerLoRA, items
) -> None:
    engine = Engine(model)
    alone = infer(engine, items)
    with ThreadPoolExecutor(2) as threads:
        for results in threads.map(infer, [engine] * 8, [items] * 8):
            assert_equal(results, alone)


def test_a_cpu_has_a_worker_per_core_but_one_for_a_compiled_network(
    checkpoint_folder: Path, model: EulerLoRA, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = EulerLoRA.load(checkpoint_folder, "cpu", compiler="eager")
    workers = []
    for cores in (1, 2, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
        workers.append((Engine(model).workers, Engine(compiled).workers))
    assert workers == [(1, 1), (2, 1), (MAX_WORKERS, 1)]


def test_a_single_pass_gets_all_cores_and_concurrent_ones_an_equal_part() -> None:
    cores = CoreAllocation(5)
    with ExitStack() as passes:
        counts = [passes.enter_context(cores.allocate()) for _ in range(6)]
    assert counts == [5, 2, 1, 1, 1, 1]
    with cores.allocate() as count:
        assert count == 5


def test_a_failed_pass_returns_its_cores() -> None:
    cores = CoreAllocation(2)
    with pytest.raises(ZeroDivisionError), cores.allocate():
        raise ZeroDivisionError
    with cores.allocate() as count:
        assert count == 2


def test_the_number_of_cores_is_set_for_the_thread_of_the_pass_only() -> None:
    torch.set_num_threads(2)
    cores, counts = CoreAllocation(), []

    def run_second_pass() -> None:
        with cores.allocate():
            counts.append(torch.get_num_threads())

    with cores.allocate():
        thread = threading.Thread(target=run_second_pass)
        thread.start()
        thread.join()
        assert torch.get_num_threads() == 2
    assert counts == [1]
