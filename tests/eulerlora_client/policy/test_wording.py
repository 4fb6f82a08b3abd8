"""Words for everything that a policy can say."""

from itertools import combinations
from typing import get_args

from eulerlora_client.contract.triage import Disposition, Reason
from eulerlora_client.policy.policy import SUGGESTS, Decision, disposition
from eulerlora_client.policy.wording import (
    GROUPS,
    NOT_FITTED,
    PATHWAYS,
    REASONS,
    RETAKE_BUT_URGENT,
    TITLES,
    WARNING,
    Group,
    pathway,
)


def decision(*reasons: Reason) -> Decision:
    return Decision(disposition(reasons), reasons, 1, "sha256:00")


def test_everything_that_can_be_said_has_words_of_its_own() -> None:
    assert set(TITLES) == set(PATHWAYS) == set(Disposition)
    assert set(REASONS) == set(SUGGESTS) == set(Reason)
    assert set(GROUPS) == set(get_args(Group))
    sentences = [*PATHWAYS.values(), *REASONS.values(), RETAKE_BUT_URGENT, WARNING, NOT_FITTED]
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_every_pathway_says_that_it_is_suggested() -> None:
    for reasons in combinations(Reason, 2):
        assert pathway(decision(*reasons)).startswith("Suggested pathway: ")


def test_a_picture_to_be_taken_again_keeps_its_urgency_in_words() -> None:
    assert pathway(decision(Reason.BLURRED)) == PATHWAYS[Disposition.RETAKE]
    found = pathway(decision(Reason.BLURRED, Reason.MALIGNANT_GROUP))
    assert "take the picture again" in found
    assert "prioritise" in found


def test_the_warning_says_what_the_answer_is_not() -> None:
    assert "not a medical device" in WARNING
    assert "can be wrong" in WARNING
