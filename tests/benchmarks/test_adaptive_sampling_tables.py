"""benchmarks.adaptive_sampling_tables: what its tables say of made-up trajectories."""

import math

import pytest
import torch
from torch import Generator

from benchmarks import adaptive_sampling_tables
from benchmarks.adaptive_sampling_tables import COUNTS, Found
from eulerlora.adaptive_sampling import MAX_SAMPLES, ROUNDS, is_converged

REPEATS, IMAGES, CLASSES = 5, 60, 3


@pytest.fixture(scope="module")
def found() -> Found:
    """Images of which some are clear and some divided; others that are all divided."""
    random = Generator().manual_seed(0)
    centre = 2 * torch.randn(IMAGES, 1, 1, CLASSES, generator=random)
    noise = torch.randn(2, REPEATS, IMAGES, 2, MAX_SAMPLES, CLASSES, generator=random)
    inside = (centre + 0.5 * noise[0]).softmax(dim=-1).double()
    return Found(inside, (0.5 * noise[1]).softmax(dim=-1).double())


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_auto_s_mean_is_over_the_samples_that_it_takes(found) -> None:
    means = adaptive_sampling_tables.settled_means(found.inside)
    taken = adaptive_sampling_tables.samples_taken(found.inside)
    threshold = adaptive_sampling_tables.settling_threshold(found.inside)
    assert set(taken.flatten().tolist()) == set(ROUNDS)
    for repeat, image in ((0, 0), (1, 7), (3, 59)):
        own = found.inside[repeat, image]
        count = next(
            each
            for each in (*ROUNDS[:-1], MAX_SAMPLES)
            if is_converged(own[:, :each], threshold) or each == MAX_SAMPLES
        )
        assert taken[repeat, image] == count
        torch.testing.assert_close(means[repeat, image], own[:, :count].mean(dim=(0, 1)))


def test_the_deviation_falls_as_one_over_the_root_of_independent_samples(found) -> None:
    labels = found.inside.mean(dim=(0, 2, 3)).argmax(dim=-1)
    rows = [
        cells(line) for line in adaptive_sampling_tables.worth_table(found, labels).splitlines()[2:]
    ]
    assert [row[0] for row in rows] == [*(str(each) for each in COUNTS), "auto"]
    deviations = [float(row[1]) for row in rows[:-1]]
    for count, deviation in zip(COUNTS, deviations, strict=True):
        assert deviation == pytest.approx(deviations[0] / math.sqrt(count), rel=0.15)
    assert all(float(row[2]) > 0.75 for row in rows)
    assert all(0.5 < float(row[5]) <= 1 for row in rows)


def test_agreement_and_the_samples_taken_are_told_of_both_samplers(found) -> None:
    measured = {"independent": found, "balanced": found}
    lines = [
        cells(line) for line in adaptive_sampling_tables.agreement_table(measured).splitlines()
    ]
    width = {len(line) for line in lines}
    assert width == {7 + len(ROUNDS)}
    auto = [line for line in lines if line[1] == "auto"]
    assert [line[0] for line in auto] == ["independent", "balanced"]
    shares = [float(cell.rstrip("%")) for cell in auto[0][7:]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    mean = sum(share * count / 100 for share, count in zip(shares, ROUNDS, strict=True))
    assert float(auto[0][2]) == pytest.approx(mean, abs=0.05)
    figure = adaptive_sampling_tables.drawing(measured)
    assert len(figure.axes) == 2


def test_no_answer_is_compared_with_its_own_samples() -> None:
    """Two repeats that say the opposite of one another agree in nothing."""
    said = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
    inside = said[:, None, None, None].expand(2, IMAGES, 2, MAX_SAMPLES, 2)
    lines = adaptive_sampling_tables.agreement_table(
        {"balanced": Found(inside, None)}
    ).splitlines()[2:]
    assert [cells(line)[3] for line in lines] == ["0.00%"] * (len(ROUNDS) + 1)
