"""The order of rows, their names and counts."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from clinic.tests.triage_rows import (
    BLURRED,
    SHARP,
    UNFAMILIAR,
    failed,
    fixed_policy,
    make_prediction,
    passes,
    triaged,
)
from eulerlora_clinic.policy.policy import Policy
from eulerlora_clinic.report.ranking import TriageRow, first_of_lesions, ranked, with_lesions
from eulerlora_contract.answers import Disposition, Prediction


@pytest.fixture(scope="module")
def policy() -> Policy:
    return fixed_policy()


def row(
    policy: Policy, path: str, label: str = "nv", margin: float = 7, sharp: bool = True
) -> TriageRow:
    prediction = make_prediction(passes(label, margin, 0.2, seed=0))
    return triaged(Path(path), prediction, SHARP if sharp else BLURRED, policy)


def unfamiliar(label: str) -> Prediction:
    return make_prediction(passes(label, 7, 0.2, seed=0), **UNFAMILIAR)


def names(rows: list[TriageRow]) -> list[str]:
    return [result.name for result in ranked(rows)]


def test_the_most_urgent_come_first_and_failures_precede_routine(policy: Policy) -> None:
    rows = [
        row(policy, "routine"),
        failed(Path("failed"), "unusable_image", "broken"),
        row(policy, "retake", sharp=False),
        triaged(Path("refer"), make_prediction(passes("nv", 7, 0.2, 0), ood=True), SHARP, policy),
        row(policy, "urgent", "mel"),
    ]
    rows.append(triaged(Path("unfamiliar"), unfamiliar("nv"), SHARP, policy))
    assert names(rows) == ["urgent", "unfamiliar", "refer", "retake", "failed", "routine"]


def test_a_poor_or_unfamiliar_image_keeps_its_urgency(policy: Policy) -> None:
    rows = [
        triaged(Path("poor unfamiliar"), unfamiliar("nv"), BLURRED, policy),
        row(policy, "retake", sharp=False),
        row(policy, "poor malignant", "mel", sharp=False),
        triaged(Path("unfamiliar malignant"), unfamiliar("mel"), SHARP, policy),
    ]
    assert [(result.name, result.status) for result in ranked(rows)] == [
        ("poor malignant", Disposition.URGENT),
        ("unfamiliar malignant", Disposition.URGENT),  # its probability is not shown
        ("poor unfamiliar", Disposition.UNFAMILIAR),
        ("retake", Disposition.RETAKE),
    ]


def test_within_a_status_the_target_probability_decides(policy: Policy) -> None:
    rows = [row(policy, str(margin), "mel", margin) for margin in (2, 6, 4)]
    results = ranked(rows)
    assert {result.status for result in results} == {Disposition.URGENT}
    shares = [result.shown.target or 0 for result in results]
    assert all(one > other for one, other in pairwise(shares))


def test_equal_rows_are_sorted_by_name(policy: Policy) -> None:
    assert names([row(policy, name) for name in ("b", "C", "a")]) == ["a", "b", "C"]


def test_names_start_below_the_common_folder(policy: Policy) -> None:
    rows = [row(policy, path) for path in ("/data/clinic/1/a.jpg", "/data/clinic/2/a.jpg")]
    assert names(rows) == ["1/a.jpg", "2/a.jpg"]


def test_a_path_may_start_with_two_slashes(policy: Policy) -> None:
    """POSIX keeps them."""
    assert names([row(policy, "//data/a.jpg")]) == ["//data/a.jpg"]


def test_images_of_a_lesion_stay_together_where_the_most_urgent_is(policy: Policy) -> None:
    rows = [
        replace(row(policy, "a routine"), lesion="A"),
        row(policy, "retake", sharp=False),
        replace(row(policy, "a urgent", "mel"), lesion="A"),
        replace(row(policy, "b routine"), lesion="B"),
        replace(failed(Path("b failed"), "unusable_image", "broken"), lesion="B"),
    ]
    in_order = ranked(rows)
    assert names(rows) == ["a urgent", "a routine", "retake", "b failed", "b routine"]
    assert [one.name for one in first_of_lesions(in_order)] == ["a urgent", "retake", "b failed"]
    statuses = [(one.lesion_status, one.lesion_disposition) for one in with_lesions(rows)]
    urgent = (Disposition.URGENT, Disposition.URGENT)
    assert statuses == [urgent, (None, None), urgent, ("failed", None), ("failed", None)]
