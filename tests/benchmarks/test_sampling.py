"""Variances of samples agree with their formulas."""

import math

import pytest
import torch
from torch import Generator

from benchmarks import sampling
from eulerlora.checkpoint.files import Checkpoint
from eulerlora.model import EulerLoRA

SPREAD = 20 / 11 * sum(1 / k for k in range(10, 21)) - 1


def numbers(line: str) -> list[float]:
    return [float(cell) for cell in line.split("|")[1:-1]]


def test_variances_of_coefficients_agree_with_the_formula() -> None:
    rows = [numbers(line) for line in sampling.coefficient_table(1_000, [1, 4]).splitlines()[2:]]
    assert [row[0] for row in rows] == [1, 4]
    for samples, independent, balanced, inputs, output in rows:
        assert independent == pytest.approx(SPREAD / samples, rel=0.05)
        assert inputs == pytest.approx(independent / balanced, rel=0.02)
        assert output == pytest.approx(inputs, rel=0.15)
    assert rows[0][3] == pytest.approx(1, rel=0.05)
    assert rows[1][3] == pytest.approx(63.7, rel=0.1)


def test_the_deviation_of_mean_probabilities_decreases_with_the_samples(
    make_network, make_config
) -> None:
    """For independent samples as 1/sqrt(S); all deviations come from draws of 4 samples."""
    network = make_network()
    model = EulerLoRA(Checkpoint(network, make_config(network), "sha256:0"), torch.device("cpu"))
    pixels = torch.rand(3, 3, 32, 32, generator=Generator().manual_seed(0))
    deviations = sampling.deviations(model, pixels, "independent", samples=4, repeats=60)
    assert list(deviations) == [1, 2, 4]
    for samples, deviation in deviations.items():
        assert deviation == pytest.approx(deviations[1] / math.sqrt(samples), rel=0.15)
    direct = torch.stack(
        [
            model.predict(pixels, "stoch", 4, seed, sampler="balanced").probabilities
            for seed in range(60)
        ]
    )
    balanced = sampling.deviations(model, pixels, "balanced", samples=4, repeats=60)
    assert balanced[4] == pytest.approx(float(direct.var(dim=0).mean().sqrt()), rel=0.25)
    assert balanced[4] < deviations[4]
    lines = sampling.model_table(model, pixels, 2, 2).splitlines()
    assert lines[0] == "3 images, 2 repeats of 2 samples"
    assert [numbers(line)[0] for line in lines[4:]] == [1, 2]
