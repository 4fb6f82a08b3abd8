"""Coverage of stated errors, from synthetic trajectories with known and unknown means."""

import pytest
import torch
from torch import Generator, Tensor

from benchmarks.adaptive_sampling_tables import SampledProbabilities, adaptive_samples
from benchmarks.error_coverage import error_coverage_table
from eulerlora.sampling.adaptive import MAX_SAMPLES, ROUNDS
from eulerlora.settings import Sampler

REPEATS, IMAGES, CLASSES = 8, 80, 3


def sampled(noise: float, samples: int = MAX_SAMPLES, repeats: int = REPEATS) -> Tensor:
    """Returns independent samples, (repeats, images, 2, samples, classes), of the same images."""
    centre = 2 * torch.randn(IMAGES, 1, 1, CLASSES, generator=Generator().manual_seed(0))
    shape = repeats, IMAGES, 2, samples, CLASSES
    draws = torch.randn(shape, generator=Generator().manual_seed(1))
    return (centre + noise * draws).softmax(dim=-1).double()


def rows(table: str) -> dict[tuple[str, str], list[str]]:
    """Returns the cells after sampler and S, by these two."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {(row[0], row[1]): row[2:] for row in cells}


def share(cell: str) -> float:
    return float(cell.rstrip("%")) / 100


def test_independent_samples_are_covered_more_often_at_a_fixed_number_than_stated() -> None:
    inside = sampled(0.5)
    exact = sampled(0.5, samples=2000, repeats=1).mean(dim=(2, 3), keepdim=True).expand_as(inside)
    measured: dict[Sampler, SampledProbabilities] = {
        "independent": SampledProbabilities(inside, None),
        "balanced": SampledProbabilities(exact, None),
    }
    table = rows(error_coverage_table(measured))
    assert set(table) == {
        (sampler, str(count))
        for sampler in ("independent", "balanced")
        for count in (*ROUNDS, "all")
    }
    for count in ROUNDS:
        fixed = table["independent", str(count)][:2]
        assert all(0.95 < share(cell) < 1 for cell in fixed)
    counts = adaptive_samples(inside)
    answers = [int(table["independent", str(count)][2]) for count in ROUNDS]
    assert answers == [int((counts == count).sum()) for count in ROUNDS]
    assert int(table["independent", "all"][2]) == REPEATS * IMAGES
    for column in (3, 4):
        cells = [table["independent", str(count)][column] for count in ROUNDS]
        covered = sum(share(cell) * n for cell, n in zip(cells, answers, strict=True) if n)
        total = share(table["independent", "all"][column])
        assert covered / sum(answers) == pytest.approx(total, abs=0.002)


def test_answers_far_from_those_of_other_samples_are_not_covered() -> None:
    apart = sampled(0.01, repeats=4)
    apart = torch.cat([apart, apart.roll(1, dims=-1)])
    table = rows(error_coverage_table({"balanced": SampledProbabilities(apart, None)}))
    assert share(table["balanced", "16"][0]) < 0.1
    assert table["balanced", "all"][3:] == table["balanced", "2"][3:]
    assert table["balanced", "8"][2:] == ["0", "", ""]
