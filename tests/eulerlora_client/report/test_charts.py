"""service/client/report_charts.py: bars, points and the two parts of entropy, in per cent."""

import math
import re

import numpy as np
import pytest

from eulerlora_client.report.charts import class_bars, entropy_split, points_path
from tests.eulerlora_client.triage_rows import CLASSES, passes, prediction

MALIGNANT = ("mel", "bcc", "akiec")
DOT = re.compile(r"M([\d.]+) ([\d.]+)h0")


def dots(path: str) -> list[tuple[float, float]]:
    found = [(float(x), float(y)) for x, y in DOT.findall(path)]
    assert DOT.sub("", path) == ""
    return found


def test_bars_are_the_probabilities_the_highest_first() -> None:
    found = prediction(passes("mel", 2, 0.5, seed=0))
    bars = class_bars(found, MALIGNANT)
    assert [bar.name for bar in bars] == sorted(
        CLASSES, key=lambda name: -found.probabilities[name]
    )
    assert [bar.length for bar in bars] == pytest.approx(
        sorted((100 * each for each in found.probabilities.values()), reverse=True), abs=0.01
    )


def test_the_malignant_group_is_marked() -> None:
    bars = class_bars(prediction(passes("nv", 2, 0.5, seed=0)), MALIGNANT)
    assert {bar.name for bar in bars if bar.malignant} == set(MALIGNANT)


def test_each_trajectory_is_a_point_at_its_probability() -> None:
    by_trajectory = passes("nv", 1, 1.0, seed=1)
    for bar in class_bars(prediction(by_trajectory), MALIGNANT):
        column = by_trajectory[:, CLASSES.index(bar.name)]
        assert [x for x, _ in dots(bar.points)] == pytest.approx(100 * column, abs=0.01)
        assert (bar.lowest, bar.highest) == (column.min(), column.max())


def test_without_trajectories_there_is_no_point() -> None:
    found = prediction(passes("nv", 1, 1.0, seed=1), detail=False)
    assert all(
        (bar.points, bar.lowest, bar.highest) == ("", None, None)
        for bar in class_bars(found, MALIGNANT)
    )


def test_points_of_equal_values_lie_at_different_heights_inside_the_chart() -> None:
    heights = [y for _, y in dots(points_path([0.5] * 16))]
    assert len(set(heights)) == 16
    assert 0 < min(heights) < max(heights) < 100


def test_values_a_little_outside_0_to_1_stay_inside_the_chart() -> None:
    assert [x for x, _ in dots(points_path([-1e-9, 1 + 1e-9]))] == [0, 100]


def test_the_two_parts_are_shares_of_the_largest_entropy() -> None:
    found = prediction(passes("nv", 1, 1.5, seed=2))
    split = entropy_split(found)
    assert split.expected == pytest.approx(100 * found.expected_entropy / math.log(7), abs=0.01)
    assert split.mutual == pytest.approx(100 * found.mutual_information / math.log(7), abs=0.01)
    assert split.mutual > 1


def test_the_largest_entropy_fills_the_scale() -> None:
    same = prediction(np.full((2, 7), 1 / 7))
    apart = prediction(np.eye(7))
    assert (entropy_split(same).expected, entropy_split(same).mutual) == (100, 0)
    assert (entropy_split(apart).expected, entropy_split(apart).mutual) == (0, 100)


def test_a_model_of_one_class_has_no_entropy_to_split() -> None:
    found = prediction(passes("nv", 1, 1.5, seed=2)).model_copy(
        update={"probabilities": {"nv": 1.0}, "entropy": 0.0}
    )
    assert (entropy_split(found).expected, entropy_split(found).mutual) == (0, 0)
