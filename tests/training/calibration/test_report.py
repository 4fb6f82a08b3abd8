"""The table of requirements states known numbers of lesions, and what came of each part."""

from dataclasses import replace

from tests.training.calibration.policy_inputs import MEL, scored
from training.calibration.policy import fit_policy
from training.calibration.report import policy_parts, report_table, site_parts
from training.calibration.thresholds import CoverageSettings

NEEDS = 0.95, CoverageSettings((0.9, 0.95)), MEL


def test_the_numbers_are_those_of_exact_bounds() -> None:
    parts = {part.part: part for part in site_parts({"mel": 59, "nv": 8}, "lesion", *NEEDS)}
    assert parts["OOD thresholds"].needed == 19
    assert parts["prediction sets 0.9"].needed == 9
    assert parts["prediction sets 0.95"].needed == 19
    assert parts["bound of 0.95"].needed == 59
    assert parts["bound of 0.95"].met
    assert parts["prediction sets 0.9"].available == 8
    assert not parts["prediction sets 0.9"].met


def test_the_table_says_what_came_of_each_part() -> None:
    parts = site_parts({"mel": 9, "nv": 10}, "image", 0.95, CoverageSettings(), MEL)
    text = report_table([replace(part, result="fitted" if part.met else "") for part in parts])
    assert "| OOD thresholds | 19 images | 19 | fitted |" in text
    assert "| temperature | 10 images of each class | 9 | too few |" in text
    assert "| bound of 0.95 | 59 images of melanoma without a miss | 9 | too few |" in text


def test_the_parts_of_a_policy_are_those_of_a_site() -> None:
    fit = fit_policy(scored(critical=62), 0.95)
    site = {part.part: part for part in site_parts({"mel": 62, "nv": 100}, "lesion", *NEEDS)}
    urgent, bound, entropy = policy_parts(fit, MEL)
    for part in (urgent, bound):
        assert replace(part, result="") == site[part.part]
    assert urgent.result == "0.5: 62 of 62 found, lower bound 0.953"
    assert bound.result == "established"
    assert entropy.available == 162
