"""Every combination of rules against an independent table, and the file of a policy."""

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinic.tests.triage_rows import IN_BOTH_PRECISIONS
from eulerlora_clinic.policy.policy import (
    AnswerSummary,
    Evidence,
    Policy,
    PolicyError,
    default_policy,
    default_policy_text,
    default_sampling,
    dispositions,
    parse_policy,
    policy_of,
    read_policy,
)
from eulerlora_contract.answers import (
    Disposition,
    ImageQuality,
    Prediction,
    Reason,
)
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import PRECISIONS
from tests.eulerlora_contract.policy_inputs import GOOD, make_prediction

TEXT = """\
format_version = 2
version = 7
[quality]
too_small_px = 100
too_dark = 0.25
too_bright = 0.875
too_dark_share = 0.5
too_bright_share = 0.125
blurred = 8.0
[target]
name = "malignant"
classes = ["mel", "bcc"]
routine = 0.375
urgent = 0.5
[uncertainty]
entropy_nats = 1.5
"""
POLICY = parse_policy(TEXT, "test")
FAR_POLICIES = {
    ood: parse_policy(f"{TEXT}[unfamiliar]\nfar = 40.0\nood = {str(ood).lower()}\n", "test")
    for ood in (False, True)
}

BAD_QUALITIES = {
    "too_small": {"height": 100},
    "too_dark": {"brightness": 0.25},
    "too_bright": {"bright_share": 0.125},
    "blurred": {"sharpness": 8.0},
}
MALIGNANT = {
    "below": (0.25, 0.0625), "routine": (0.25, 0.125), "between": (0.25, 0.1875),
    "urgent": (0.25, 0.25), "above": (0.5, 0.25),
}  # fmt: skip
ENTROPIES = {"below": 1.25, "equal": 1.5, "above": 1.75}
TRAJECTORIES: dict[str, dict[str, Any]] = {
    "agree": {"trajectory_labels": ("nv",) * 8},
    "disagree": {"trajectory_labels": ("nv",) * 7 + ("bkl",)},
    "unknown": {"trajectories": 2, "trajectory_labels": ()},
    "single": {"trajectories": 1, "trajectory_labels": ()},
}
UNKNOWN = (
    Reason.FAR, Reason.UNFAMILIAR, Reason.BLURRED, Reason.TARGET_CLASSES,
    Reason.OUT_OF_DISTRIBUTION, Reason.TRAJECTORIES_DISAGREE,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One combination of the inputs of the rules."""

    bad: tuple[str, ...]
    unfamiliar: bool | None
    ood: bool | None
    target: str
    entropy: str = "below"
    trajectories: str = "agree"
    distance: float | None = None
    ood_is_far: bool | None = None

    @property
    def policy(self) -> Policy:
        """Without `[unfamiliar]` unless the case says what `ood` is."""
        return POLICY if self.ood_is_far is None else FAR_POLICIES[self.ood_is_far]

    @property
    def is_far(self) -> bool:
        if self.ood_is_far is None or self.distance is None or not self.unfamiliar:
            return False
        return self.distance >= 40 or (self.ood_is_far and self.ood is True)

    @property
    def quality(self) -> ImageQuality:
        changes: dict[str, Any] = {}
        for name in self.bad:
            changes |= BAD_QUALITIES[name]
        return GOOD.model_copy(update=changes)

    @property
    def prediction(self) -> Prediction:
        mel, bcc = MALIGNANT[self.target]
        none = {"value": 0.0, "threshold": None, "flagged": None}
        distance = None if self.distance is None else none | {"value": self.distance}
        return make_prediction(
            probabilities={"nv": 1 - mel - bcc, "bkl": 0.0, "mel": mel, "bcc": bcc},
            entropy=ENTROPIES[self.entropy],
            ood=self.ood,
            unfamiliar=self.unfamiliar,
            ood_scores={"msp": none, "energy": none, "feature_distance": distance},
            **TRAJECTORIES[self.trajectories],
        )

    @property
    def expected(self) -> str:
        """The disposition by the ordered rules."""
        if self.is_far:
            return "unfamiliar"
        if self.target in ("urgent", "above"):
            return "urgent"
        if self.unfamiliar:
            return "unfamiliar"
        if self.bad:
            return "retake"
        if self.ood is not False or self.target != "below":
            return "refer"
        if self.entropy != "below" or self.trajectories in ("disagree", "unknown"):
            return "refer"
        return "routine"

    @property
    def expected_reasons(self) -> list[str]:
        reasons = list(self.bad)
        reasons += ["unfamiliar"] if self.unfamiliar else []
        reasons += ["far"] if self.is_far else []
        reasons += {True: ["out_of_distribution"], None: ["ood_unknown"], False: []}[self.ood]
        reasons += {
            "urgent": ["target_classes"], "above": ["target_classes"],
            "routine": ["target_possible"], "between": ["target_possible"], "below": [],
        }[self.target]  # fmt: skip
        if self.entropy != "below":
            reasons.append("high_entropy")
        reasons += {
            "disagree": ["trajectories_disagree"],
            "unknown": ["trajectories_unknown"],
        }.get(self.trajectories, [])
        return reasons


def cases() -> Iterator[Case]:
    names = list(BAD_QUALITIES)
    for bits in product((False, True), repeat=len(names)):
        bad = tuple(name for name, is_bad in zip(names, bits, strict=True) if is_bad)
        flags = (False, True, None)
        for rest in product(flags, flags, MALIGNANT, ENTROPIES, TRAJECTORIES):
            yield Case(bad, *rest)
    for bad in ((), ("blurred",)):
        for *rest, distance, ood in product(
            flags, flags, MALIGNANT, (None, 39.99, 40.0, 41.0), FAR_POLICIES
        ):
            yield Case(bad, *rest, distance=distance, ood_is_far=ood)


def test_every_combination_has_the_disposition_and_reasons_of_the_table() -> None:
    seen = set()
    for case in cases():
        decision = case.policy.decide(AnswerSummary(case.prediction), case.quality)
        assert decision.disposition == case.expected, case
        assert list(decision.reasons) == case.expected_reasons, case
        assert (decision.reasons == ()) == (decision.disposition == "routine"), case
        seen |= {decision.disposition, *decision.reasons}
    assert seen == {*Disposition, *Reason}


def test_unknown_reasons_leave_every_disposition_that_one_of_their_outcomes_has() -> None:
    for states in product((False, True, math.nan), repeat=len(UNKNOWN)):
        reasons = dict(zip(UNKNOWN, states, strict=True))
        outcomes = product(*((state,) if state in (0, 1) else (False, True) for state in states))
        expected = {possible(dict(zip(UNKNOWN, one, strict=True))) for one in outcomes}
        assert {(name,) for name in possible(reasons)} == expected, reasons


def possible(reasons: dict[Reason, float]) -> tuple[Disposition, ...]:
    return tuple(name for name, is_possible in dispositions(reasons).items() if is_possible)


def test_arrays_have_the_dispositions_of_their_images() -> None:
    images = list(product((False, True), repeat=len(UNKNOWN)))
    arrays = dict(zip(UNKNOWN, np.array(images).T, strict=True))
    together = dispositions(arrays)
    for index, states in enumerate(images):
        alone = dispositions(dict(zip(UNKNOWN, states, strict=True)))
        assert {name: flags[index] for name, flags in together.items()} == alone


@pytest.mark.parametrize(
    ("field", "threshold", "step", "reason"),
    [
        ("width", 100, 1, Reason.TOO_SMALL),
        ("height", 100, 1, Reason.TOO_SMALL),
        ("brightness", 0.25, 0.001, Reason.TOO_DARK),
        ("dark_share", 0.5, -0.001, Reason.TOO_DARK),
        ("brightness", 0.875, -0.001, Reason.TOO_BRIGHT),
        ("bright_share", 0.125, -0.001, Reason.TOO_BRIGHT),
        ("sharpness", 8.0, 0.001, Reason.BLURRED),
    ],
)
def test_a_quality_equal_to_its_threshold_means_retake_and_one_step_better_does_not(
    field: str, threshold: float, step: float, reason: Reason
) -> None:
    usual = AnswerSummary(make_prediction())
    at: dict[str, Any] = {field: threshold}
    past: dict[str, Any] = {field: threshold + step}
    assert POLICY.decide(usual, GOOD.model_copy(update=at)).reasons == (reason,)
    assert POLICY.decide(usual, GOOD.model_copy(update=past)).reasons == ()


def test_a_model_without_the_target_classes_is_an_error_that_names_them() -> None:
    cifar = make_prediction(model="cifar10", probabilities={"cat": 0.5, "bcc": 0.5})
    with pytest.raises(PolicyError, match=r"requires the classes mel; the model has cat, bcc"):
        POLICY.decide(AnswerSummary(cifar), GOOD)


def test_the_hash_depends_only_on_the_content() -> None:
    read = tomllib.loads(TEXT) | {"evidence": []}
    read["target"]["critical"] = {"name": "malignant", "classes": ["mel", "bcc"]}
    content = json.dumps(read, sort_keys=True, separators=(",", ":"))
    assert POLICY.hash == "sha256:" + hashlib.sha256(content.encode()).hexdigest()
    again = parse_policy("# said otherwise\n\n" + TEXT.replace(" = ", "="), "again")
    assert again.hash == POLICY.hash
    for changes in (
        {"version": again.version + 1},
        {"evidence": default_policy().evidence},
        {"unfamiliar": FAR_POLICIES[True].unfamiliar},
        {"unfamiliar": FAR_POLICIES[False].unfamiliar},
    ):
        assert again.model_copy(update=changes).hash != POLICY.hash


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("format_version = 2", "format_version = 1", r"format_version.* target\.routine"),
        ("format_version = 2", "format_version = 3", "format_version"),
        ("version = 7", "version = 0", "version"),
        ("version = 7\n", "", "version"),
        ("blurred = 8.0", "blured = 8.0", r"quality\.blur"),
        ("blurred = 8.0", "blurred = -1", r"quality\.blurred"),
        ("blurred = 8.0", "blurred = nan", r"quality\.blurred"),
        ("too_dark = 0.25", "too_dark = 0.875", "too_dark"),
        ("too_bright = 0.875", "too_bright = 1.1", r"quality\.too_bright"),
        ("routine = 0.375\n", "", r"target\.routine"),
        ("routine = 0.375", "routine = 0", r"target\.routine"),
        ("routine = 0.375", "routine = 0.51", r"routine of at most urgent=0\.5"),
        ("urgent = 0.5", "urgent = 0", r"target\.urgent"),
        ("urgent = 0.5", "urgent = 1.01", r"target\.urgent"),
        ('["mel", "bcc"]', "[]", r"target\.classes"),
        ('["mel", "bcc"]', '["mel", "mel"]', "expected unique classes"),
        ("entropy_nats = 1.5", "entropy_nats = 0", r"uncertainty\.entropy_nats"),
        ("[uncertainty]", "[more]\nx = 1\n[uncertainty]", "more"),
        ("[uncertainty]", "[unfamiliar]\nood = true\n[uncertainty]", r"unfamiliar\.far"),
        ("[uncertainty]", "[unfamiliar]\nfar = 40.0\n[uncertainty]", r"unfamiliar\.ood"),
        (
            "[uncertainty]",
            "[unfamiliar]\nfar = 0.0\nood = true\n[uncertainty]",
            r"unfamiliar\.far",
        ),
        ("[quality]", "[quality", "line 3"),
    ],
)
def test_an_invalid_policy_file_is_an_error_with_its_name_and_the_key(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    assert old in TEXT
    path = tmp_path / "own.toml"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(SettingsError, match=rf"^{re.escape(str(path))}: .*{key}"):
        read_policy(path)


def test_an_unreadable_policy_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml: cannot be read"):
        read_policy(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(SettingsError, match=r"latin\.toml: expected TOML in UTF-8"):
        read_policy(tmp_path / "latin.toml")


def test_the_packaged_policy_is_valid_and_its_evidence_is_consistent() -> None:
    policy = default_policy()
    assert parse_policy(default_policy_text(), "again") == policy
    assert {one.options.precision for one in policy.evidence} <= set(PRECISIONS)
    exact = [one.options.in_precision("float32") for one in policy.evidence]
    assert len(set(exact)) == len({one.revision for one in policy.evidence}) == 1
    assert len({tuple(part.data for part in one.measured) for one in policy.evidence}) == 1
    for one in policy.evidence:
        check_evidence(one)


def check_evidence(evidence: Evidence) -> None:
    fit, measured = evidence.fit, evidence.measured
    for threshold in (fit.routine, fit.urgent):
        assert threshold.established
        assert threshold.established == (threshold.lower_bound >= threshold.wanted)
        assert threshold.hits <= threshold.lesions
    assert {one.data.partition(" (")[0] for one in measured} >= {"PH2", "PAD-UFES-20"}
    for one in measured:
        assert one.data != fit.data
        outside = 0 if one.outside is None else one.outside.lesions
        assert one.target.lesions + outside + one.others.lesions == one.lesions
        for seen in (one.critical, one.target):
            share = 1 - seen.neither / seen.lesions
            assert seen.sensitivity == pytest.approx(share, abs=1e-4)
            assert seen.sensitivity_low <= seen.sensitivity <= seen.sensitivity_high
        others = one.others
        assert others.specificity == pytest.approx(others.neither / others.lesions, abs=1e-4)
        assert others.specificity_low <= others.specificity <= others.specificity_high
        urgent = one.urgent
        assert urgent is not None
        assert urgent.predictive_value == pytest.approx(urgent.target / urgent.lesions, abs=1e-4)
        assert urgent.lesions >= one.target.urgent + others.urgent


def test_a_threshold_is_fitted_to_one_model_and_its_options() -> None:
    policy = IN_BOTH_PRECISIONS
    evidence, other = policy.evidence
    revision, own = evidence.revision, evidence.options
    rounded = replace(own, precision=other.options.precision)
    found = (policy.evidence_for(revision, options) for options in (own, rounded))
    assert tuple(found) == (evidence, other)
    single = policy.model_copy(update={"evidence": (evidence,)})
    assert single.evidence_for(revision, rounded) == evidence  # which answers state
    assert policy.evidence_for("sha256:other", own) is None
    of_auto = replace(own, samples="auto")
    for options in (
        replace(own, samples=5),
        replace(own, views=2),
        replace(own, sampler="independent"),
        replace(own, mode="det", samples=1),
        of_auto,
    ):
        assert policy.evidence_for(revision, options) is None
    measured = evidence.model_copy(update={"options": of_auto})
    with_auto = policy.model_copy(update={"evidence": (*policy.evidence, measured)})
    found = (with_auto.evidence_for(revision, options) for options in (own, of_auto))
    assert tuple(found) == (evidence, measured)
    assert POLICY.evidence_for(revision, own) is None


def test_two_entries_of_evidence_for_the_same_options_are_refused() -> None:
    content = default_policy().model_dump(mode="json")
    content["evidence"].append(content["evidence"][0])
    with pytest.raises(SettingsError, match=r"one entry for stoch, 2 balanced .*float32, got 2"):
        policy_of(content, "the service")


def test_the_evidence_in_a_precision_is_the_first_one_if_there_is_none_in_it() -> None:
    policy = default_policy()
    for one in policy.evidence:
        assert policy.evidence_in(one.options.precision) == one
    first = policy.model_copy(update={"evidence": policy.evidence[:1]})
    assert [first.evidence_in(one) for one in (None, *PRECISIONS)] == [policy.evidence[0]] * 3
    assert POLICY.evidence_in("float32") is None


def evidence(mode: str, samples: int | str) -> tuple[Evidence, ...]:
    first, *others = default_policy().evidence
    options = replace(first.options, mode=mode, samples=samples)
    return (first.model_copy(update={"options": options}), *others)


@pytest.mark.parametrize(
    ("fitted", "given", "expected"),
    [
        (("stoch", 8), (None, None), ("stoch", 8)),
        (("stoch", 8), ("stoch", None), ("stoch", 8)),
        (("stoch", 8), (None, 2), ("stoch", 2)),
        (("stoch", 8), (None, "auto"), ("stoch", "auto")),
        (("stoch", "auto"), (None, None), ("stoch", "auto")),
        (("stoch", 8), ("det", None), ("det", None)),
        (("det", 1), (None, None), ("det", None)),
        (("det", 1), ("stoch", None), ("stoch", 4)),
        (("det", 1), (None, 4), ("det", 4)),  # which the service refuses
    ],
)
def test_missing_values_are_those_of_the_evidence(fitted, given, expected) -> None:
    assert default_sampling(evidence(*fitted), *given) == expected


def test_without_evidence_the_defaults_are_those_of_a_prediction() -> None:
    assert default_sampling(()) == ("det", None)
    assert default_sampling((), "stoch") == ("stoch", 4)


def test_keys_of_later_versions_are_ignored_in_a_described_policy() -> None:
    policy = default_policy()
    content = policy.model_dump(mode="json")
    content["later"] = 1
    content["evidence"][0]["fit"]["later"] = 2
    assert policy_of(content, "the service") == policy


def test_a_described_policy_without_a_key_is_an_error_that_names_it() -> None:
    content = default_policy().model_dump(mode="json")
    del content["quality"]["blurred"]
    with pytest.raises(SettingsError, match=r"^the service: missing key quality\.blurred$"):
        policy_of(content, "the service")
