"""Texts of decisions, and the tables of measured performance."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from clinic.tests.triage_rows import IN_BOTH_PRECISIONS, UNFAMILIAR
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, stored_revision
from eulerlora_clinic.policy.policy import (
    AnswerSummary,
    Decision,
    Policy,
    UnfamiliarRules,
    default_policy,
    dispositions,
)
from eulerlora_clinic.policy.results import (
    NOT_MEASURED,
    REASONS,
    Performance,
    card_section,
    not_established,
    performance,
    performance_text,
    triage_result,
)
from eulerlora_contract.answers import (
    Disposition,
    ImageQuality,
    PolicyReference,
    Prediction,
    Reason,
    shown_fields,
)
from eulerlora_contract.checkpoints import Unit
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import PRECISIONS
from tests.eulerlora_contract.policy_inputs import GOOD, make_prediction
from training.reporting.model_card import write_model_card

DEFAULT_MODEL = Path(__file__).parents[3] / "docs" / "results" / "default-model.md"


def decide(policy: Policy, prediction: Prediction, quality: ImageQuality = GOOD) -> Decision:
    return policy.decide(AnswerSummary(prediction), quality)


def pathway(*reasons: Reason) -> str:
    """The suggested pathway of an answer with these reasons."""
    possible = dispositions(dict.fromkeys(reasons, True))
    (disposition,) = (name for name, is_possible in possible.items() if is_possible)
    decision = Decision(disposition, reasons, 1, "sha256:00")
    return triage_result(make_prediction(), GOOD, decision, default_policy(), {}).pathway


@pytest.mark.parametrize(
    ("decisive", "words"),
    [(Reason.TARGET_CLASSES, "urgent"), (Reason.UNFAMILIAR, "a person must look")],
)
def test_the_pathway_of_a_poor_image_asks_for_a_better_one_and_keeps_its_urgency(
    decisive: Reason, words: str
) -> None:
    usual, poor = pathway(decisive), pathway(Reason.BLURRED, decisive)
    assert usual.startswith(f"Suggested pathway: {words}")
    assert "retake" not in usual
    assert poor.startswith(usual)
    assert "retake the image" in poor


def test_the_pathway_of_an_urgent_image_says_that_the_model_does_not_know_such_images() -> None:
    usual, urgent = (
        pathway(*reasons, Reason.TARGET_CLASSES) for reasons in ((), (Reason.UNFAMILIAR,))
    )
    assert urgent.startswith(usual)
    assert "does not know such images" in urgent.removeprefix(usual)


@pytest.mark.parametrize("is_fitted", [True, False])
@pytest.mark.parametrize("missing", [None, "routine", "urgent"])
def test_a_result_says_what_is_known_about_its_policy_for_the_predicting_model(
    is_fitted: bool, missing: str | None
) -> None:
    content = default_policy().model_dump()
    if missing is not None:
        content["evidence"][0]["fit"][missing]["established"] = False
    rules = Policy.model_validate(content)
    evidence = rules.evidence[0]
    prediction = make_prediction(
        revision=evidence.revision if is_fitted else "sha256:other",
        mode=evidence.options.mode,
        samples=evidence.options.samples,
        sampler=evidence.options.sampler,
        views=evidence.options.views,
        index=3,
        item_id="a",
    )
    names = {"nv": "naevus"}
    result = triage_result(
        prediction, GOOD, rules.decide(AnswerSummary(prediction), GOOD), rules, names
    )
    assert (result.index, result.item_id, result.class_names) == (3, "a", names)
    known = result.policy
    assert known.established == (known.notice is None) == (is_fitted and missing is None)
    if is_fitted and missing is not None:
        assert f"{missing} threshold" in (known.notice or "")
        assert ("does not establish" in (known.notice or "")) == (missing == "urgent")
    plain = rules.model_copy(update={"evidence": ()})
    unknown = triage_result(
        prediction, GOOD, plain.decide(AnswerSummary(prediction), GOOD), plain, names
    ).policy
    assert (known.notice == unknown.notice) == (not is_fitted)
    expected = [measured.data for measured in evidence.measured] if is_fitted else []
    assert [one.data for one in known.measured] == expected
    if is_fitted:
        assert known.measured[0].sensitivity == evidence.measured[0].critical.sensitivity
        assert known.measured[0].specificity == evidence.measured[0].others.specificity
        urgent = evidence.measured[0].urgent
        assert urgent is not None
        assert known.measured[0].predictive_value == urgent.predictive_value


def reference(rules: Policy, precision: str) -> PolicyReference:
    """What an answer with the options of the packaged policy, in a precision, says about it."""
    evidence = default_policy().evidence[0]
    prediction = make_prediction(
        revision=evidence.revision,
        mode=evidence.options.mode,
        samples=evidence.options.samples,
        sampler=evidence.options.sampler,
        views=evidence.options.views,
        precision=precision,
    )
    decision = decide(rules, prediction)
    return triage_result(prediction, GOOD, decision, rules, {"nv": "naevus"}).policy


def test_an_answer_has_the_evidence_of_its_precision() -> None:
    rules = IN_BOTH_PRECISIONS
    for evidence in rules.evidence:
        known = reference(rules, evidence.options.precision)
        assert (known.established, known.notice) == (True, None)
        shares = [one.predictive_value for one in known.measured]
        assert shares == [one.urgent and one.urgent.predictive_value for one in evidence.measured]
    content = rules.model_dump()
    content["evidence"][1]["fit"]["urgent"]["established"] = False
    exact, rounded = (reference(Policy.model_validate(content), one) for one in PRECISIONS)
    assert (exact.established, rounded.established) == (True, False)
    assert "urgent threshold" in (rounded.notice or "")


@pytest.mark.parametrize("missing", PRECISIONS)
def test_an_answer_in_a_precision_without_evidence_has_other_figures_and_says_so(
    missing: str,
) -> None:
    rules = IN_BOTH_PRECISIONS
    (left,) = (one for one in rules.evidence if one.options.precision != missing)
    single = rules.model_copy(update={"evidence": (left,)})
    known, other = (reference(single, one) for one in (left.options.precision, missing))
    assert known.established
    assert not other.established
    assert f"set and measured in {left.options.precision}" in (other.notice or "")
    assert other.measured == known.measured


HIDDEN = {
    "label", "probabilities", "entropy", "expected_entropy", "mutual_information", "msp",
    "prediction_set", "trajectory_probabilities", "variance",
}  # fmt: skip


def test_people_read_why_a_far_image_is_not_urgent() -> None:
    prediction = make_prediction({"nv": 0.1, "mel": 0.9, "bcc": 0.0, "akiec": 0.0}, **UNFAMILIAR)
    rules = default_policy().model_copy(update={"unfamiliar": UnfamiliarRules(far=36, ood=False)})
    result = triage_result(prediction, GOOD, decide(rules, prediction), rules, {})
    assert result.disposition is Disposition.UNFAMILIAR
    words = {reason.code: reason.words for reason in result.shown.reasons}
    assert list(words) == [Reason.UNFAMILIAR, Reason.FAR]  # and not that it is above the threshold
    assert Reason.TARGET_CLASSES in [reason.code for reason in result.reasons]
    assert words[Reason.FAR] == REASONS[Reason.FAR].format(target=rules.target.name)


@pytest.mark.parametrize("flag", [True, False, None])
def test_people_see_the_figures_of_an_image_unless_it_is_unfamiliar(flag: bool | None) -> None:
    probabilities = {"nv": 0.1, "mel": 0.9, "bcc": 0.0, "akiec": 0.0}
    prediction = make_prediction(probabilities, unfamiliar=flag, ood=True)
    rules = default_policy()
    poor = GOOD.model_copy(update={"sharpness": 0.0})
    result = triage_result(
        prediction, poor, rules.decide(AnswerSummary(prediction), poor), rules, {}
    )
    assert result.disposition is Disposition.URGENT
    fields = shown_fields(dict(prediction))
    if flag:
        codes = [reason.code for reason in result.shown.reasons]
        assert codes == [Reason.BLURRED, Reason.UNFAMILIAR, Reason.TARGET_CLASSES]
        assert (result.shown.figures, result.shown.target) == (None, None)
        assert fields.keys() == Prediction.model_fields.keys() - HIDDEN
    else:
        assert result.shown.reasons == result.reasons
        assert result.shown.figures == prediction
        assert result.shown.target == result.target.probability
        assert fields == dict(prediction)


SHARES = ("", "_low", "_high")
SEEN = {"lesions": 40, "urgent": 10, "unfamiliar": 26, "refer": 3, "reached": 30}
SPARED = {"lesions": 1200, "urgent": 300, "unfamiliar": 400, "refer": 200, "reached": 900}
OUTSIDE = {
    "lesions": 4, "urgent": 0, "unfamiliar": 1, "refer": 1, "reached": 3, "labels": ["SCC"]
}  # fmt: skip
URGENT = {"lesions": 320, "target": 16}


def shares(name: str, value: float) -> dict[str, float]:
    return {f"{name}{end}": value + n / 100 for end, n in zip(SHARES, (0, -2, 1), strict=True)}


MEASURED: dict[str, Any] = {
    "data": "PH2",
    "unit": "picture",
    "images": 1300,
    "lesions": 1244,
    "referral_rate": 0.9,
    "critical": SEEN | shares("sensitivity", 0.975),
    "target": SEEN | shares("sensitivity", 0.975),
    "others": SPARED | shares("specificity", 0.25),
    "urgent": URGENT | shares("predictive_value", 0.05),
}


def policy(*measured: dict[str, Any]) -> Policy:
    """Returns the packaged policy with other measurements."""
    content = default_policy().model_dump()
    content["evidence"][0]["measured"] = measured
    return Policy.model_validate(content)


def shown(*measured: dict[str, Any]) -> Performance:
    rules = policy(*measured)
    tables = performance(rules, rules.evidence[0])
    assert tables is not None
    return tables


def test_an_answer_states_no_predictive_value_if_no_image_was_urgent() -> None:
    rules = policy(MEASURED | {"urgent": None})
    (known,) = reference(rules, rules.evidence[0].options.precision).measured
    assert (known.unit, known.sensitivity, known.predictive_value) == ("picture", 0.975, None)


def test_the_summary_has_a_row_for_each_data_set() -> None:
    other = {"data": "PAD", "unit": "lesion", "urgent": None}
    summary = shown(MEASURED, MEASURED | other).summary
    assert summary.header[1] == "sensitivity, melanoma"
    seen = "0.975 [0.955, 0.985] (39/40, of these 26 only as unfamiliar)"
    spared = "0.250 [0.230, 0.260] (300/1,200)"
    assert [tuple(row) for row in summary.rows] == [
        ("PH2, pictures", seen, seen, spared, "0.050 [0.030, 0.060] (16/320)"),
        ("PAD, lesions", seen, seen, spared, "none urgent"),
    ]


def test_a_vertical_bar_in_a_name_adds_no_column() -> None:
    table = shown(MEASURED | {"data": "PH2|PAD"}).summary.markdown
    assert r"| PH2\|PAD, pictures | 0.975 [" in table


def test_the_details_state_what_the_threshold_alone_does() -> None:
    other = OUTSIDE | shares("sensitivity", 0.5)
    rows = [tuple(row) for row in shown(MEASURED | {"outside": other}).details.rows]
    assert rows == [
        ("PH2, pictures: melanoma", "40", "10", "26", "3", "1", "0.750"),
        ("PH2, pictures: malignant", "40", "10", "26", "3", "1", "0.750"),
        ("PH2, pictures: SCC, malignant without a class", "4", "0", "1", "1", "2", "0.750"),
        ("PH2, pictures: others", "1,200", "300", "400", "200", "300", "0.250"),
    ]


def test_a_group_has_figures_from_twenty_lesions_on() -> None:
    share = {"value": 0.9, "low": 0.7, "high": 0.98}
    group = {
        "attribute": "sex", "value": "male", "sensitivity": share | {"lesions": 20},
        "specificity": share | {"lesions": 19}, "auroc": {"value": 0.9, "lesions": 1200},
    }  # fmt: skip
    (row,) = shown(MEASURED | {"groups": [group]}).groups.rows
    assert list(row) == [
        "PH2, pictures: sex male", "0.900 [0.700, 0.980] (20)", "too few to say (19)",
        "too few to say (1,200)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "note"),
    [("picture", "name no lesions"), ("lesion", ""), ("group", "nothing is shown about shares of")],
)
def test_every_sentence_on_a_fit_names_its_unit(unit: Unit, note: str) -> None:
    content = default_policy().model_dump()
    fit = content["evidence"][0]["fit"]
    fit |= {"unit": unit, "urgent": fit["urgent"] | {"independent": 90, "established": False}}
    rules = Policy.model_validate(content)
    notice = not_established(rules, rules.evidence[0]) or ""
    assert f"{fit['urgent']['lesions']} {unit}s of 90 groups" in notice
    assert f"new {unit}s" in notice
    told = notice + performance(rules, rules.evidence[0]).origin  # type: ignore[union-attr]
    assert ("lesions" in told) == (unit == "lesion") or note in told
    assert f"60 of 62 {unit}s with melanoma" in told


def test_a_policy_without_measurement_has_no_tables() -> None:
    rules = policy()
    assert performance(rules, rules.evidence[0]) is None
    assert performance(rules, None) is None
    for evidence in ((), rules.evidence[:1]):
        assert performance_text(rules.model_copy(update={"evidence": evidence})) == NOT_MEASURED


def test_the_text_has_all_tables_of_the_first_evidence_and_the_summary_of_the_others() -> None:
    rules = IN_BOTH_PRECISIONS
    exact, rounded = (performance(rules, evidence) for evidence in rules.evidence)
    assert exact is not None and rounded is not None
    assert "8 views in float32" in exact.origin and "8 views in bfloat16" in rounded.origin
    parts = (exact.markdown, rounded.origin, rounded.summary.markdown)
    assert performance_text(rules) == "\n\n".join(parts)


@pytest.mark.parametrize("change", [{"urgent": 15}, {"reached": 41}])
def test_counts_above_the_number_of_lesions_are_refused(change: dict[str, int]) -> None:
    with pytest.raises((SettingsError, ValueError), match="at most lesions=40"):
        policy(MEASURED | {"target": MEASURED["target"] | change})


def test_the_documents_have_the_measured_performance_of_the_packaged_policy() -> None:
    policy = default_policy()
    measured = performance(policy, policy.evidence[0])
    assert measured is not None
    names = {row[0].partition(" (")[0] for row in measured.summary.rows}
    assert names >= {"PH2", "PAD-UFES-20"}
    assert measured.summary.markdown in DEFAULT_MODEL.read_text()
    for evidence in policy.evidence:
        assert evidence.revision == stored_revision(DEFAULT_CHECKPOINT)


def test_a_card_states_the_first_evidence_and_where_the_others_are() -> None:
    section = card_section(IN_BOTH_PRECISIONS)
    assert f"{stored_revision(DEFAULT_CHECKPOINT)}, in float32. 60 of 62 lesions" in section
    assert section.count("| PH2 (fits used 20 of its images), lesions |") == 1
    assert section.count("PH2") == section.count("107 of 188 lesions") == 1
    assert "By group and precision: `eulerlora policy show --performance`" in section


def test_the_packaged_card_is_that_of_its_stored_report_and_the_packaged_policy(
    tmp_path: Path,
) -> None:
    shutil.copy(DEFAULT_CHECKPOINT / "config.json", tmp_path)
    section = card_section(default_policy())
    write_model_card(tmp_path, DEFAULT_MODEL.with_suffix(""), [section])
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (DEFAULT_CHECKPOINT / file.name).read_bytes()
