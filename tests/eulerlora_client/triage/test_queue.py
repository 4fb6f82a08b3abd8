"""The queue with and without the flag of the feature distance."""

from pathlib import Path

import pytest

from eulerlora_client.contract.answers import Disposition
from eulerlora_client.policy.policy import Policy
from eulerlora_client.report.ranking import Picture, first_everyday, queue_of, status_counts
from tests.eulerlora_client.triage_rows import (
    SHARP,
    UNFAMILIAR,
    failed,
    fixed_policy,
    make_prediction,
    passes,
    triaged,
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return fixed_policy()


def picture(
    policy: Policy, name: str, label: str, unfamiliar: bool = False, everyday: bool = False
) -> Picture:
    changes = UNFAMILIAR if unfamiliar else {}
    prediction = make_prediction(passes(label, 7, 0.2, seed=0), **changes)
    row = triaged(Path(name), prediction, SHARP, policy)
    return Picture(row, "objects" if everyday else "clinic", label == "mel", everyday)


@pytest.fixture(scope="module")
def pictures(policy: Policy) -> list[Picture]:
    return [
        picture(policy, "nevus", "nv"),
        picture(policy, "unfamiliar melanoma", "mel", unfamiliar=True),
        picture(policy, "melanoma", "mel"),
        picture(policy, "a chair", "bcc", unfamiliar=True, everyday=True),
    ]


def names(pictures: list[Picture], policy: Policy, heed_unfamiliar: bool) -> list[str]:
    queue = queue_of(pictures, policy, heed_unfamiliar)
    return [str(each.picture.row.path) for each in queue]


def test_without_the_flag_an_everyday_picture_is_urgent_and_with_it_not(
    pictures: list[Picture], policy: Policy
) -> None:
    before, after = (queue_of(pictures, policy, heed) for heed in (False, True))
    assert status_counts(before, "objects") == {Disposition.URGENT: 1}
    assert status_counts(after, "objects") == {Disposition.UNFAMILIAR: 1}
    assert status_counts(before, "clinic") == {Disposition.URGENT: 2, Disposition.ROUTINE: 1}
    assert status_counts(after, "clinic") == {
        Disposition.URGENT: 1, Disposition.UNFAMILIAR: 1, Disposition.ROUTINE: 1
    }  # fmt: skip


def test_the_order_is_that_of_the_ranking(pictures: list[Picture], policy: Policy) -> None:
    after = names(pictures, policy, heed_unfamiliar=True)
    assert after[0] == "melanoma"
    assert set(after[1:3]) == {"unfamiliar melanoma", "a chair"}
    assert after[3] == "nevus"


def test_the_first_everyday_picture_is_found_from_1(
    pictures: list[Picture], policy: Policy
) -> None:
    order = names(pictures, policy, heed_unfamiliar=True)
    queue = queue_of(pictures, policy, heed_unfamiliar=True)
    assert first_everyday(queue) == order.index("a chair") + 1
    assert first_everyday(queue_of(pictures[:3], policy, heed_unfamiliar=True)) is None


def test_the_policy_decides_again(pictures: list[Picture], policy: Policy) -> None:
    (nevus, *_) = pictures
    strict = policy.model_copy(
        update={"malignant": policy.malignant.model_copy(update={"urgent": 1e-9})}
    )
    assert status_counts(queue_of([nevus], strict, True), "clinic") == {Disposition.URGENT: 1}


def test_rows_without_a_result_are_failed(policy: Policy) -> None:
    row = failed(Path("b"), "timed_out", "no answer")
    queue = queue_of([Picture(row, "clinic", False, False)], policy, False)
    assert status_counts(queue, "clinic") == {"failed": 1}
