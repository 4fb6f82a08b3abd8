"""Recorded passes: which row counts are recorded, what is replayed, and failures."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from eulerlora.nn.graphs import RecordedPasses, Recording, recorder_of
from eulerlora.nn.network import AdaptedVisionTransformer, NetworkOutput, predict_images
from eulerlora.nn.runtime import TorchRuntime
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw, RuntimeSettings
from tests.conftest import random_network

CPU = torch.device("cpu")
COUNTS = (2, 8)
DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"),
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
LONE = [Draw()]
SAMPLED = [Draw(mode="stoch", samples=2, seed=1), Draw()]
VIEWED = [Draw(mode="stoch", samples=4, seed=2, views=4)]
LARGE = [Draw(mode="stoch", samples=3, seed=3), Draw(mode="stoch", samples=2, seed=4)]


class Recorder:
    """Records as on the device, and keeps the number of rows of each recording."""

    def __init__(self, error: Exception | None = None) -> None:
        self._recorder = recorder_of(CPU)
        self.rows: list[int] = []
        self.replays = 0
        self.error = error
        self.in_turn = self._recorder.in_turn

    def record(self, run: Callable[[], NetworkOutput]) -> Recording:
        if self.error is not None:
            raise self.error
        recording = self._recorder.record(run)
        self.rows.append(len(recording.output.logits))

        def replay() -> None:
            self.replays += 1
            recording.replay()

        return Recording(recording.output, replay)


class Network:
    """A network whose passes are recorded, with the rows of its passes and the last images."""

    def __init__(self, network: AdaptedVisionTransformer, recorder: Recorder) -> None:
        self.network, self.settings, self.draw_rows = network, network.settings, network.draw_rows
        self.passes: list[int] = []

        def forward(images, rows, draws) -> NetworkOutput:
            self.passes.append(len(rows))
            self.images = images.clone()
            return network.outputs(images, rows, draws)

        self.outputs = RecordedPasses(forward, COUNTS, recorder)  # type: ignore[arg-type]


def images_of(draws: list[Draw]) -> torch.Tensor:
    return torch.rand(len(draws), 3, 32, 32, generator=torch.Generator().manual_seed(len(draws)))


def assert_same(actual: list[Trajectories], expected: list[Trajectories]) -> None:
    for one, other in zip(actual, expected, strict=True):
        for name in ("log_probabilities", "features", "views"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=1e-4)


def test_rows_run_in_the_recording_of_the_next_row_count_which_is_made_once() -> None:
    recorder = Recorder()
    network = Network(random_network(), recorder)
    for draws in (SAMPLED, LONE, VIEWED, SAMPLED, LONE):  # 6, 2, 8, 6 and 2 rows
        images = images_of(draws)
        actual = predict_images(network, images, draws)
        assert_same(actual, predict_images(network.network, images, draws))
        assert draws is VIEWED or not network.images[len(draws) :].any()  # padded with zeros
    assert recorder.rows == [8, 2]
    assert recorder.replays == 5


def test_more_rows_than_the_largest_recording_has_run_without_one() -> None:
    recorder = Recorder()
    network = Network(random_network(), recorder)
    images = images_of(LARGE)
    assert_same(
        predict_images(network, images, LARGE), predict_images(network.network, images, LARGE)
    )
    assert network.passes == [10]
    assert recorder.rows == []


def test_an_output_outlives_the_next_replay() -> None:
    network = Network(random_network(), Recorder())
    first = predict_images(network, images_of(LONE), LONE)
    kept = first[0].features.clone()
    predict_images(network, images_of(LONE) / 2, LONE)
    assert torch.equal(first[0].features, kept)


def test_after_a_failed_recording_all_passes_run_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing\nMore")
    network = Network(random_network(), Recorder(error))
    for draws in (SAMPLED, LONE):
        images = images_of(draws)
        assert_same(
            predict_images(network, images, draws), predict_images(network.network, images, draws)
        )
    assert network.passes == [6, 2]
    (record,) = caplog.records
    assert "operation not permitted when stream is capturing" in record.message
    assert "More" not in record.message


def test_an_error_of_a_replay_reaches_the_caller_and_the_next_pass_runs() -> None:
    network = random_network()
    failing = [True]

    def forward(images, rows, draws) -> NetworkOutput:
        if failing[0] and images.isnan().any():
            raise ValueError("not finite")
        return network.outputs(images, rows, draws)

    recorded = Network(network, Recorder())
    recorded.outputs = RecordedPasses(forward, COUNTS, recorder_of(CPU))
    images = images_of(LONE)
    expected = predict_images(recorded, images, LONE)
    with pytest.raises(ValueError, match="not finite"):
        predict_images(recorded, images * torch.nan, LONE)
    assert_same(predict_images(recorded, images, LONE), expected)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_threads_that_share_recordings_get_the_answers_of_one(device: torch.device) -> None:
    network = random_network().to(device)
    recorded = TorchRuntime(network, device, RuntimeSettings(graphs=True))
    cases = [SAMPLED, LONE, VIEWED, LARGE] * 4

    def answers(draws: list[Draw]) -> list[Trajectories]:
        return predict_images(recorded, images_of(draws).to(device), draws)

    with ThreadPoolExecutor(2) as threads:
        for draws, actual in zip(cases, threads.map(answers, cases), strict=True):
            images = images_of(draws).to(device)
            assert_same(actual, predict_images(network, images, draws))
