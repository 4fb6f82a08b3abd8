"""The study of which lesions to label: its curves and its differences from random choice."""

import itertools

import numpy as np
import pytest

from studies import selection
from studies.selection import METRICS, RANDOM, SEEDS, STRATEGIES, differences, learning_curve


@pytest.mark.parametrize("strategy", [RANDOM, *STRATEGIES])
def test_every_batch_adds_new_lesions_to_the_same_first_ones(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FIRST": 20, "BATCH": 5, "LAST": 60, "COMMITTEE": 2}.items():
        monkeypatch.setattr(selection, name, value)
    labels = np.arange(60) % 3
    features = np.eye(3)[labels] + np.random.default_rng(0).normal(size=(60, 3))
    lesions = (features, labels)
    curve = list(learning_curve(strategy, 0, 7, lesions, lesions))
    assert [sum(point["by_class"]) for point in curve] == [*range(20, 61, 5)]
    assert [point["labelled"] for point in curve] == [*range(20, 61, 5)]
    assert curve[0] == next(iter(learning_curve(RANDOM, 3, 7, lesions, lesions)))
    assert curve[-1]["by_class"] == [20, 20, 20]  # all of them, each once


def test_a_difference_is_the_mean_over_batches_paired_by_seed() -> None:
    curves = [
        {"strategy": strategy, "seed": seed, "labelled": labelled, **dict.fromkeys(METRICS, value)}
        for strategy, (seed, gain), (labelled, share) in itertools.product(
            (RANDOM, *STRATEGIES),
            zip(SEEDS, (0.10, 0.11, 0.12, 0.13, 0.14), strict=True),
            ((100, 9.0), (150, 0.5), (200, 1.5)),  # the first lesions are no batch
        )
        for value in [seed + share * gain * (strategy != RANDOM)]
    ]
    rows = list(differences(curves))
    assert [row[0] for row in rows] == list(STRATEGIES)
    assert rows[0][1].startswith("+0.120 (+0.100 to +0.140), p ")
