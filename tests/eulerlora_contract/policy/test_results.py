"""Texts of decisions, and the tables of measured performance."""

from typing import Any

import pytest

from eulerlora_contract.answers import FIGURES, Disposition, Prediction, Reason, shown_fields
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.policy.policy import Decision, Policy, default_policy, dispositions
from eulerlora_contract.policy.results import (
    PATHWAYS,
    Performance,
    pathway,
    performance,
    triage_result,
)
from tests.eulerlora_contract.policy_inputs import GOOD, make_prediction


def decision(*reasons: Reason) -> Decision:
    possible = dispositions(dict.fromkeys(reasons, True))
    (disposition,) = (name for name, is_possible in possible.items() if is_possible)
    return Decision(disposition, reasons, 1, "sha256:00")


def test_the_pathway_of_a_retake_keeps_its_urgency() -> None:
    assert pathway(decision(Reason.BLURRED)) == PATHWAYS[Disposition.RETAKE]
    urgent = pathway(decision(Reason.BLURRED, Reason.TARGET_CLASSES))
    assert "retake the image" in urgent
    assert "urgent" in urgent


def test_the_pathway_of_an_unfamiliar_image_asks_for_a_better_one_if_its_quality_is_poor() -> None:
    assert pathway(decision(Reason.UNFAMILIAR)) == PATHWAYS[Disposition.UNFAMILIAR]
    assert "retake the image" in pathway(decision(Reason.UNFAMILIAR, Reason.BLURRED))


@pytest.mark.parametrize("is_fitted", [True, False])
@pytest.mark.parametrize("is_established", [True, False])
def test_a_result_says_what_is_known_about_its_policy_for_the_predicting_model(
    is_fitted: bool, is_established: bool
) -> None:
    rules = default_policy()
    evidence = rules.evidence
    assert evidence is not None
    fit = evidence.fit.model_copy(update={"established": is_established})
    rules = rules.model_copy(update={"evidence": evidence.model_copy(update={"fit": fit})})
    prediction = make_prediction(
        revision=evidence.revision if is_fitted else "sha256:other",
        mode=evidence.mode,
        samples=evidence.samples,
        views=evidence.views,
        index=3,
        item_id="a",
    )
    names = {"nv": "naevus"}
    result = triage_result(prediction, GOOD, rules.decide(prediction, GOOD), rules, names)
    assert (result.index, result.item_id, result.class_names) == (3, "a", names)
    known = result.policy
    assert known.established == (known.notice is None) == (is_fitted and is_established)
    plain = rules.model_copy(update={"evidence": None})
    unknown = triage_result(prediction, GOOD, plain.decide(prediction, GOOD), plain, names).policy
    assert (known.notice == unknown.notice) == (not is_fitted)
    expected = [measured.data for measured in evidence.measured] if is_fitted else []
    assert [one.data for one in known.measured] == expected
    if is_fitted:
        assert known.measured[0].sensitivity == evidence.measured[0].critical.sensitivity
        assert known.measured[0].specificity == evidence.measured[0].others.specificity


@pytest.mark.parametrize("flag", [True, False, None])
def test_people_see_the_figures_of_an_image_unless_it_is_unfamiliar(flag: bool | None) -> None:
    prediction = make_prediction(unfamiliar=flag, ood=True)
    rules = default_policy()
    poor = GOOD.model_copy(update={"sharpness": 0.0})
    result = triage_result(prediction, poor, rules.decide(prediction, poor), rules, {})
    fields = shown_fields(dict(prediction))
    if flag:
        codes = [reason.code for reason in result.shown.reasons]
        assert codes == [Reason.BLURRED, Reason.UNFAMILIAR]
        assert (result.shown.figures, result.shown.target) == (None, None)
        assert fields.keys() == Prediction.model_fields.keys() - FIGURES
    else:
        assert result.shown.reasons == result.reasons
        assert result.shown.figures == prediction
        assert result.shown.target == result.target.probability
        assert fields == dict(prediction)


SHARES = ("", "_low", "_high")
SEEN = {"lesions": 40, "urgent": 13, "unfamiliar": 26, "reached": 30}
SPARED = {"lesions": 1200, "urgent": 500, "unfamiliar": 400, "reached": 900}
OUTSIDE = {"lesions": 4, "urgent": 1, "unfamiliar": 1, "reached": 3, "labels": ["SCC"]}


def shares(name: str, value: float) -> dict[str, float]:
    return {f"{name}{end}": value + n / 100 for end, n in zip(SHARES, (0, -2, 1), strict=True)}


MEASURED: dict[str, Any] = {
    "data": "PH2",
    "images": 1300,
    "lesions": 1244,
    "referral_rate": 0.9,
    "critical": SEEN | shares("sensitivity", 0.975),
    "target": SEEN | shares("sensitivity", 0.975),
    "others": SPARED | shares("specificity", 0.25),
}


def policy(*measured: dict[str, Any]) -> Policy:
    """Returns the packaged policy with other measurements."""
    content = default_policy().model_dump()
    content["evidence"]["measured"] = measured
    return Policy.model_validate(content)


def shown(*measured: dict[str, Any]) -> Performance:
    tables = performance(policy(*measured))
    assert tables is not None
    return tables


def test_the_summary_has_a_row_for_each_data_set() -> None:
    summary = shown(MEASURED, MEASURED | {"data": "PAD"}).summary
    assert summary.header[1] == "sensitivity, melanoma"
    seen = "0.975 [0.955, 0.985] (39/40, of these 26 only as unfamiliar)"
    assert [tuple(row) for row in summary.rows] == [
        (data, seen, seen, "0.250 [0.230, 0.260] (300/1,200)") for data in ("PH2", "PAD")
    ]


def test_the_details_state_what_the_threshold_alone_does() -> None:
    other = OUTSIDE | shares("sensitivity", 0.5)
    rows = [tuple(row) for row in shown(MEASURED | {"outside": other}).details.rows]
    assert rows == [
        ("PH2: melanoma", "40", "13", "26", "1", "0.750"),
        ("PH2: malignant", "40", "13", "26", "1", "0.750"),
        ("PH2: SCC, malignant without a class", "4", "1", "1", "2", "0.750"),
        ("PH2: other lesions", "1,200", "500", "400", "300", "0.250"),
    ]


def test_a_policy_without_measurement_has_no_tables() -> None:
    assert performance(policy()) is None
    assert performance(default_policy().model_copy(update={"evidence": None})) is None


@pytest.mark.parametrize("change", [{"urgent": 15}, {"reached": 41}])
def test_counts_above_the_number_of_lesions_are_refused(change: dict[str, int]) -> None:
    with pytest.raises((SettingsError, ValueError), match="at most lesions=40"):
        policy(MEASURED | {"target": MEASURED["target"] | change})
