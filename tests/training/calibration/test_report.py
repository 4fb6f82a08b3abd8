"""The table of requirements states known numbers of lesions, and what came of each part."""

from dataclasses import replace

from tests.training.calibration.policy_inputs import MEL, scored
from training.calibration.policy import fit_policy
from training.calibration.report import Needs, policy_parts, report_table, site_parts

NEEDS = Needs(sensitivity=0.95, coverages=(0.9, 0.95))


def test_the_numbers_are_those_of_exact_bounds() -> None:
    parts = {part.part: part for part in site_parts({"mel": 59, "nv": 8}, "lesion", NEEDS, MEL)}
    assert parts["OOD thresholds"].needed == 19
    assert parts["prediction sets 0.9"].needed == 9
    assert parts["prediction sets 0.95"].needed == 19
    assert parts["bound of 0.95"].needed == 59
    assert parts["bound of 0.95"].met
    assert parts["prediction sets 0.9"].available == 8
    assert not parts["prediction sets 0.9"].met


def test_a_class_without_pictures_leaves_no_prediction_sets() -> None:
    parts = site_parts({"mel": 0, "nv": 100}, "image", NEEDS, MEL)
    unmet = [part.part for part in parts if not part.met]
    assert unmet == [
        "temperature", "prediction sets 0.9", "prediction sets 0.95", "urgent threshold",
        "bound of 0.95",
    ]  # fmt: skip


def test_the_table_says_what_came_of_each_part() -> None:
    parts = site_parts({"mel": 9, "nv": 10}, "image", Needs(0.95, ()), MEL)
    text = report_table([replace(part, result="fitted" if part.met else "") for part in parts])
    assert "| OOD thresholds | 19 images | 19 | fitted |" in text
    assert "| temperature | 10 images of each class | 9 | too few |" in text
    assert "| bound of 0.95 | 59 images of melanoma without a miss | 9 | too few |" in text


def test_the_parts_of_a_policy_are_those_of_a_site() -> None:
    fit = fit_policy(scored(critical=62), 0.95)
    site = {part.part: part for part in site_parts({"mel": 62, "nv": 100}, "lesion", NEEDS, MEL)}
    urgent, bound, entropy = policy_parts(fit, MEL)
    for part in (urgent, bound):
        assert replace(part, result="") == site[part.part]
    assert urgent.result == "0.5: 62 of 62 found, lower bound 0.953"
    assert bound.result == "established"
    assert entropy.available == 162


def test_rare_classes_need_no_lesion_if_they_are_in_every_set() -> None:
    needs = Needs(0.95, (0.9,), always_include_rare=True)
    parts = {part.part: part for part in site_parts({"mel": 0, "nv": 9}, "lesion", needs, MEL)}
    assert parts["prediction sets 0.9"].met
