"""The texts for people."""

from itertools import combinations

from eulerlora_client.contract.answers import Disposition, Reason
from eulerlora_client.policy.policy import SUGGESTED_DISPOSITIONS, Decision, disposition_for
from eulerlora_client.policy.results import (
    NOT_FITTED,
    PATHWAYS,
    REASONS,
    RETAKE_BUT_URGENT,
    TITLES,
    UNFAMILIAR_AND_POOR,
    WARNING,
    pathway,
)


def decision(*reasons: Reason) -> Decision:
    return Decision(disposition_for(reasons), reasons, 1, "sha256:00")


def test_every_disposition_and_reason_has_a_text_of_its_own() -> None:
    assert set(TITLES) == set(PATHWAYS) == set(Disposition)
    assert set(REASONS) == set(SUGGESTED_DISPOSITIONS) == set(Reason)
    special = [RETAKE_BUT_URGENT, UNFAMILIAR_AND_POOR, WARNING, NOT_FITTED]
    sentences = [*PATHWAYS.values(), *REASONS.values(), *special]
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_the_title_of_a_disposition_is_its_word() -> None:
    assert {code.lower() for code in TITLES.values()} == set(Disposition)


def test_every_pathway_says_that_it_is_suggested() -> None:
    for reasons in combinations(Reason, 2):
        assert pathway(decision(*reasons)).startswith("Suggested pathway: ")


def test_the_pathway_of_a_retake_keeps_its_urgency() -> None:
    assert pathway(decision(Reason.BLURRED)) == PATHWAYS[Disposition.RETAKE]
    urgent = pathway(decision(Reason.BLURRED, Reason.MALIGNANT_GROUP))
    assert "retake the image" in urgent
    assert "urgent" in urgent


def test_the_pathway_of_an_unfamiliar_image_suggests_a_retake_only_for_poor_quality() -> None:
    text = pathway(decision(Reason.UNFAMILIAR, Reason.MALIGNANT_GROUP))
    assert text == PATHWAYS[Disposition.UNFAMILIAR]
    assert "a person must look" in text
    assert "say nothing" in text
    poor = pathway(decision(Reason.BLURRED, Reason.UNFAMILIAR, Reason.MALIGNANT_GROUP))
    assert "a person must look" in poor
    assert "retake the image" in poor
    assert "urgent" not in poor


def test_the_warning_states_the_limits_of_a_result() -> None:
    assert "not a medical device" in WARNING
    assert "can be wrong" in WARNING
