"""Tables of fixed numbers of samples and `auto`, from synthetic trajectories."""

import math

import pytest
import torch
from torch import Generator

from benchmarks.adaptive_sampling_tables import (
    COUNTS,
    SampledProbabilities,
    adaptive_means,
    adaptive_samples,
    agreement_table,
    chart,
    convergence_threshold,
    metrics_table,
)
from eulerlora.sampling.adaptive import MAX_SAMPLES, ROUNDS, is_converged

REPEATS, IMAGES, CLASSES = 5, 60, 3


@pytest.fixture(scope="module")
def sampled() -> SampledProbabilities:
    """Returns images with high and low confidence, and OOD images with low confidence."""
    random = Generator().manual_seed(0)
    centre = 2 * torch.randn(IMAGES, 1, 1, CLASSES, generator=random)
    noise = torch.randn(2, REPEATS, IMAGES, 2, MAX_SAMPLES, CLASSES, generator=random)
    inside = (centre + 0.5 * noise[0]).softmax(dim=-1).double()
    return SampledProbabilities(inside, (0.5 * noise[1]).softmax(dim=-1).double())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_the_mean_of_auto_is_over_its_samples(sampled) -> None:
    means = adaptive_means(sampled.inside)
    counts = adaptive_samples(sampled.inside)
    threshold = convergence_threshold(sampled.inside)
    assert set(counts.flatten().tolist()) == set(ROUNDS)
    for repeat, image in ((0, 0), (1, 7), (3, 59)):
        probabilities = sampled.inside[repeat, image]
        count = next(
            samples
            for samples in ROUNDS
            if samples == MAX_SAMPLES or is_converged(probabilities[:, :samples], threshold)
        )
        assert counts[repeat, image] == count
        torch.testing.assert_close(means[repeat, image], probabilities[:, :count].mean(dim=(0, 1)))


def test_the_deviation_falls_as_one_over_the_root_of_independent_samples(sampled) -> None:
    labels = sampled.inside.mean(dim=(0, 2, 3)).argmax(dim=-1)
    rows = [cells(line) for line in metrics_table(sampled, labels).splitlines()[2:]]
    assert [row[0] for row in rows] == [*(str(count) for count in COUNTS), "auto"]
    deviations = [float(row[1]) for row in rows[:-1]]
    for count, deviation in zip(COUNTS, deviations, strict=True):
        assert deviation == pytest.approx(deviations[0] / math.sqrt(count), rel=0.15)
    assert all(float(row[2]) > 0.75 for row in rows)
    assert all(0.5 < float(row[5]) <= 1 for row in rows)


def test_the_agreement_table_has_both_samplers(sampled) -> None:
    measured = {"independent": sampled, "balanced": sampled}
    lines = [cells(line) for line in agreement_table(measured).splitlines()]
    width = {len(line) for line in lines}
    assert width == {7 + len(ROUNDS)}
    auto = [line for line in lines if line[1] == "auto"]
    assert [line[0] for line in auto] == ["independent", "balanced"]
    shares = [float(cell.rstrip("%")) for cell in auto[0][7:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    mean = sum(share * count / 100 for share, count in zip(shares, ROUNDS, strict=True))
    assert float(auto[0][2]) == pytest.approx(mean, abs=0.05)
    figure = chart(measured)
    assert len(figure.axes) == 2


def test_no_repeat_is_compared_with_itself() -> None:
    """Two repeats with opposite predictions never agree."""
    opposite = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    inside = opposite[:, None, None, None].expand(2, IMAGES, 2, MAX_SAMPLES, 2)
    lines = agreement_table({"balanced": SampledProbabilities(inside, None)}).splitlines()[2:]
    assert [cells(line)[3] for line in lines] == ["0.00%"] * (len(ROUNDS) + 1)
