"""Bars, points and the two parts of the entropy, in per cent."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from eulerlora_client.contract.answers import OodScore, Prediction, TriageResult
from eulerlora_client.report.html import class_bars, entropy_split, points_path, relative_distance
from tests.eulerlora_client.triage_rows import (
    CLASS_NAMES,
    CLASSES,
    SHARP,
    fixed_policy,
    make_prediction,
    passes,
    triaged,
)

MALIGNANT = ("mel", "bcc", "akiec")
DOT = re.compile(r"M([\d.]+) ([\d.]+)h0")


NAMES = {code: name.partition(" (")[0] for code, name in CLASS_NAMES.items()}


def result_of(prediction: Prediction) -> TriageResult:
    result = triaged(Path("a"), prediction, SHARP, fixed_policy()).result
    assert result is not None
    return result


def dots(path: str) -> list[tuple[float, float]]:
    positions = [(float(x), float(y)) for x, y in DOT.findall(path)]
    assert DOT.sub("", path) == ""
    return positions


def test_bars_show_the_probabilities_the_highest_first() -> None:
    result = make_prediction(passes("mel", 2, 0.5, seed=0))
    bars = class_bars(result_of(result))
    codes = sorted(CLASSES, key=lambda code: -result.probabilities[code])
    assert [bar.name for bar in bars] == [NAMES[code] for code in codes]
    assert [bar.length for bar in bars] == pytest.approx(
        sorted((100 * share for share in result.probabilities.values()), reverse=True), abs=0.01
    )


@pytest.mark.parametrize(
    ("value", "threshold", "share"),
    [(0, 24, 0), (12, 24, 0.25), (24, 24, 0.5), (480, 24, 1), (-0.5, 24, 0), (3, 0, 1)],
)
def test_a_distance_at_its_threshold_is_in_the_middle(
    value: float, threshold: float, share: float
) -> None:
    score = OodScore(value=value, threshold=threshold, flagged=value > threshold)
    assert relative_distance(score) == share


def test_the_malignant_group_is_marked() -> None:
    bars = class_bars(result_of(make_prediction(passes("nv", 2, 0.5, seed=0))))
    assert {bar.name for bar in bars if bar.malignant} == {NAMES[code] for code in MALIGNANT}


def test_a_trajectory_is_a_point_at_its_probability() -> None:
    by_trajectory = passes("nv", 1, 1.0, seed=1)
    for bar in class_bars(result_of(make_prediction(by_trajectory))):
        column = by_trajectory[:, list(NAMES.values()).index(bar.name)]
        assert [x for x, _ in dots(bar.points)] == pytest.approx(100 * column, abs=0.01)
        assert (bar.lowest, bar.highest) == (column.min(), column.max())


def test_without_trajectories_there_are_no_points() -> None:
    result = make_prediction(passes("nv", 1, 1.0, seed=1), detail=False)
    assert all(
        (bar.points, bar.lowest, bar.highest) == ("", None, None)
        for bar in class_bars(result_of(result))
    )


def test_points_of_equal_values_have_different_heights_inside_the_chart() -> None:
    heights = [y for _, y in dots(points_path([0.5] * 16))]
    assert len(set(heights)) == 16
    assert 0 < min(heights) < max(heights) < 100


def test_values_slightly_outside_0_to_1_are_clamped() -> None:
    assert [x for x, _ in dots(points_path([-1e-9, 1 + 1e-9]))] == [0, 100]


def test_the_two_parts_are_shares_of_the_maximum_entropy() -> None:
    result = make_prediction(passes("nv", 1, 1.5, seed=2))
    split = entropy_split(result)
    assert split.expected == pytest.approx(100 * result.expected_entropy / math.log(7), abs=0.01)
    assert split.mutual == pytest.approx(100 * result.mutual_information / math.log(7), abs=0.01)
    assert split.mutual > 1


def test_the_maximum_entropy_fills_the_scale() -> None:
    same = make_prediction(np.full((2, 7), 1 / 7))
    distinct = make_prediction(np.eye(7))
    assert (entropy_split(same).expected, entropy_split(same).mutual) == (100, 0)
    assert (entropy_split(distinct).expected, entropy_split(distinct).mutual) == (0, 100)


def test_a_model_of_one_class_has_no_entropy_to_split() -> None:
    result = make_prediction(passes("nv", 1, 1.5, seed=2)).model_copy(
        update={"probabilities": {"nv": 1.0}, "entropy": 0.0}
    )
    assert (entropy_split(result).expected, entropy_split(result).mutual) == (0, 0)
