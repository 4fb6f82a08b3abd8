"""The table of requirements states known numbers of lesions, and what came of each part."""

from training.site.requirements import Needs, requirements, requirements_table

NEEDS = Needs(kept=0.95, sensitivity=0.95, coverages=(0.9, 0.95))


def test_the_numbers_are_those_of_exact_bounds() -> None:
    parts = {part.part: part for part in requirements({"mel": 59, "nv": 8}, "lesion", NEEDS)}
    assert parts["OOD thresholds"].needed == 19
    assert parts["prediction sets 0.9"].needed == 9
    assert parts["prediction sets 0.95"].needed == 19
    assert parts["bound of 0.95"].needed == 59
    assert parts["bound of 0.95"].met
    assert parts["prediction sets 0.9"].available == 8
    assert not parts["prediction sets 0.9"].met


def test_a_class_without_pictures_leaves_no_prediction_sets() -> None:
    parts = requirements({"mel": 0, "nv": 100}, "image", NEEDS)
    unmet = [part.part for part in parts if not part.met]
    assert unmet == [
        "temperature", "prediction sets 0.9", "prediction sets 0.95", "urgent threshold",
        "bound of 0.95",
    ]  # fmt: skip


def test_the_table_says_what_came_of_each_part() -> None:
    parts = requirements({"mel": 9, "nv": 10}, "image", Needs(0.95, 0.95, ()))
    text = requirements_table(parts, {"OOD thresholds": "fitted", "urgent threshold": "0.3"})
    assert "| OOD thresholds | 19 images | 19 | fitted |" in text
    assert "| temperature | 10 images of each class | 9 | too few |" in text
    assert "| bound of 0.95 | 59 images of mel without a miss | 9 | too few |" in text


def test_rare_classes_need_no_lesion_if_they_are_in_every_set() -> None:
    needs = Needs(0.95, 0.95, (0.9,), always_include_rare=True)
    parts = {part.part: part for part in requirements({"mel": 0, "nv": 9}, "lesion", needs)}
    assert parts["prediction sets 0.9"].met
