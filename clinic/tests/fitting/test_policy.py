"""Exact bounds, thresholds and ties; inputs of a policy agree with predictions; policy files.

The measured performance of a policy agrees with counts by hand, rounded against it.
"""

import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mapie.risk_control.fwer_control import control_fwer
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.sampling.adaptive import RoundMargins
from eulerlora.scores.uncertainty import summarise
from eulerlora_clinic.fitting.policy import (
    CURVE_THRESHOLDS,
    RULES,
    PolicyFile,
    PolicyFit,
    PolicyInputs,
    PolicyMeasurement,
    SensitivityRule,
    fit_policy,
    measure_policy,
    score_images,
)
from eulerlora_clinic.policy.policy import Policy, default_policy, default_policy_text, read_policy
from eulerlora_contract.answers import Disposition, Reason
from eulerlora_contract.checkpoints import TargetClasses, Unit
from eulerlora_contract.errors import DataError
from tests.conftest import MARGINS
from tests.training.conftest import list_images, units_of
from training.data.images import LabelledImage
from training.data.units import Units
from training.evaluation.intervals import lower_bound

Floats, Bools = NDArray[np.float64], NDArray[np.bool_]
MEL = TargetClasses.model_validate({"name": "melanoma", "classes": ("mel",)})


def scored(critical: int, target: int = 0, others: int = 100) -> PolicyInputs:
    """Critical images scored from 0.5, other target images 0.6, others from 0 to 1.

    Every image is a familiar lesion by itself with an entropy of 1; of each tenth one the
    trajectories disagree.
    """
    scores = np.concatenate(
        [
            0.5 + np.arange(critical) / 1000,
            np.full(target, 0.6),
            np.arange(others) / max(others, 1),
        ]
    )
    index = np.arange(len(scores))
    images = lesions(scores, target=index < critical + target, critical=index < critical)
    disagree = {Reason.TRAJECTORIES_DISAGREE: index % 10 == 0}
    return replace(images, flags={Reason.UNFAMILIAR: images.outside, **disagree})


def lesions(scores: Floats, target: Bools, critical: Bools) -> PolicyInputs:
    """Images without flags, with an entropy of 1, each of them a lesion."""
    none = np.zeros(len(scores), bool)
    return PolicyInputs(
        scores=scores, critical_scores=scores, entropy=np.ones(len(scores)), flags={},
        critical=critical, target=target, outside=none, units=units_of(range(len(scores))),
    )  # fmt: skip


def critical_lesions(scores: Floats) -> PolicyInputs:
    return lesions(scores, *[np.ones(len(scores), bool)] * 2)


TARGET = default_policy().target.model_copy(update={"routine": 0.008, "urgent": 0.5})
BOUND = SensitivityRule(0.95)


def fit(images: PolicyInputs, uncertain_share: float = 0.05) -> PolicyFit:
    """The fit for a bound of the sensitivity of 0.95 and a predictive value of 0.5.

    For `scored` images the urgent threshold, which cannot be established, stays 0.5.
    """
    (only,) = fit_policy([images], TARGET, BOUND, 0.5, uncertain_share)
    return only


def fitted_policy(critical: int = 60) -> Policy:
    """Thresholds of 0.5 for the target probability and of more than 1 nat."""
    return PolicyFile.read(None).fitted(fit(scored(critical)))


@pytest.mark.parametrize("lesions", [19, 58, 59, 92, 93, 200])
def test_the_threshold_is_the_highest_that_establishes_or_has_no_miss(lesions: int) -> None:
    scores = np.random.default_rng(lesions).uniform(0.1, 0.9, lesions)
    actual = fit(critical_lesions(scores))
    threshold, sensitivity = actual.target.routine, actual.routine
    misses = int(lesions >= 93) + int(lesions >= 124) + int(lesions >= 153) + int(lesions >= 181)
    assert (scores < threshold).sum() == lesions - sensitivity.hits == misses
    assert np.sort(scores)[misses] - threshold < 1e-3
    assert sensitivity.established is (lesions >= 59)


@pytest.mark.parametrize(
    "scores",
    [
        np.array([0.25] * 30 + [0.5] * 63),  # a tie at the rank of the miss that 93 lesions permit
        np.array([0.30001, 0.30002, *np.full(91, 0.5)]),  # the same by rounding
    ],
)
def test_a_tie_or_rounding_does_not_raise_the_bound(scores: Floats) -> None:
    actual = fit(critical_lesions(scores))
    assert (scores >= actual.target.routine).all()
    assert actual.routine.hits == 93
    assert actual.routine.lower_bound == lower_bound(92, 93) < lower_bound(93, 93)


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [
        (0.123456, 0.1234, 0.1235),
        (0.5, 0.5, 0.5001),
        (0.9999, 0.9999, 1.0),
        (0.99999, 0.9999, 1.0),
        (1.0, 1.0, 1.001),
        (3.14159e-7, 3.141e-7, 3.142e-7),
    ],
)
def test_the_routine_threshold_is_rounded_down_and_that_of_the_entropy_to_a_larger_number(
    value: float, down: float, up: float
) -> None:
    actual = fit(replace(critical_lesions(np.full(19, value)), entropy=np.full(19, value)))
    assert (actual.target.routine, actual.entropy_nats) == (down, up)


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))


@pytest.fixture(scope="module")
def images(image_folder: Path) -> list[LabelledImage]:
    sources = list_images(image_folder / "test").items()
    return [LabelledImage(name, source, n % 3) for n, (name, source) in enumerate(sources)]


def similar_adapters(folder: Path) -> EulerLoRA:
    """A model with one head and weak adapters, whose trajectories often agree."""
    checkpoint = load_checkpoint(folder)
    with torch.no_grad():
        for name, parameter in checkpoint.network.adapter_parameters():
            if name.startswith("heads"):
                parameter[1:] = parameter[:1]
            else:
                parameter.mul_(0.5)
    return EulerLoRA(checkpoint, torch.device("cpu"))


def test_scores_entropy_and_flags_agree_with_predictions(
    checkpoint_folder: Path, images: list[LabelledImage], image_folder: Path
) -> None:
    model = similar_adapters(checkpoint_folder)
    twins = [replace(image, cluster="twins") for image in images[:2]]
    shown = [*twins, *images[2:]]
    actual = score_images(model, shown, model.options("stoch", 4), MEL, "test")
    paths = [image_folder / "test" / image.name for image in images]
    predicted = model.predict(paths, "stoch", 4)
    mel = model.classes.index("mel")
    assert predicted.ood is not None
    assert actual.scores == pytest.approx(predicted.probabilities[:, mel].numpy(), abs=1e-6)
    assert actual.critical_scores.tolist() == actual.scores.tolist()  # the group is melanoma alone
    assert actual.entropy == pytest.approx(predicted.entropy.numpy(), abs=1e-6)
    for index, rows in enumerate(predicted.trajectories.argmax(dim=-1).tolist()):
        assert actual.flags[Reason.TRAJECTORIES_DISAGREE][index] == (len(set(rows)) > 1)
    assert actual.flags[Reason.OUT_OF_DISTRIBUTION].tolist() == predicted.ood.tolist()
    assert not actual.flags[Reason.OOD_UNKNOWN].any()
    assert len(set(actual.flags[Reason.TRAJECTORIES_DISAGREE].tolist())) == 2
    assert actual.critical.tolist() == [image.label == mel for image in images]
    assert (actual.units.unit, len(set(actual.units.image_groups[:2].tolist()))) == ("group", 1)
    assert len(set(actual.units.image_groups.tolist())) == len(images) - 1
    assert len(actual.units) == len(images)  # the twins are of two classes


def test_auto_is_scored_at_the_round_that_settles_the_disposition(
    checkpoint_folder: Path, images: list[LabelledImage], image_folder: Path
) -> None:
    zero = RoundMargins(samples=2, lead=0, log_odds=0, entropy=0, agreement=0, feature_distance=0)
    unsettled = zero.model_copy(update={"samples": 1, "log_odds": 99.0})
    margins = MARGINS.model_copy(update={"rounds": (unsettled, zero)})
    checkpoint = load_checkpoint(checkpoint_folder)
    config = checkpoint.config.model_copy(update={"margins": margins})
    model = EulerLoRA(replace(checkpoint, config=config), torch.device("cpu"))
    policy = default_policy()
    policy = policy.model_copy(
        update={"target": policy.target.model_copy(update={"classes": ("mel",)})}
    )
    options = model.options("stoch", "auto")
    mel = model.classes.index("mel")
    whole = model.predict([image_folder / "test" / image.name for image in images], "stoch", 4)
    rows = whole.trajectories.unflatten(1, (-1, 4))
    for decided_by, samples in ((policy, 2), (None, 4)):
        actual = score_images(model, images, options, MEL, "test", decided_by)
        expected = summarise(rows[:, :, :samples].flatten(1, 2))
        assert actual.scores == pytest.approx(expected.probabilities[:, mel].numpy(), abs=1e-6)
        assert actual.entropy == pytest.approx(expected.entropy.numpy(), abs=1e-6)


def test_without_an_ood_threshold_it_is_unknown_of_every_image(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    options = model.options("stoch", 3)
    actual = score_images(model, images[:3], options, MEL, "test")
    assert actual.flags[Reason.OOD_UNKNOWN].all()
    assert not actual.flags[Reason.OUT_OF_DISTRIBUTION].any()
    assert not actual.flags[Reason.UNFAMILIAR].any()


def test_a_model_without_the_policy_s_classes_is_refused(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    with pytest.raises(DataError, match="bcc, akiec"):
        score_images(model, images, model.options(), default_policy().target, "test")


def test_a_lesion_is_missed_if_all_its_images_are_below_the_threshold() -> None:
    images = scored(critical=100)
    actual = fit(replace(images, units=units_of([0, 99, *range(2, 99), 0, *range(100, 200)])))
    assert actual.routine.lesions == 99
    assert actual.target.routine == 0.502  # one miss is allowed: of 0.501; 0.5 has another image
    assert actual.routine.hits == 98


@pytest.mark.parametrize("lesions", [19, 28, 29, 45, 46, 58, 59, 61, 62, 76, 93, 154, 300])
def test_a_rule_allows_the_misses_by_its_exact_bound(lesions: int) -> None:
    scores = np.random.default_rng(lesions).uniform(0.1, 0.9, lesions)

    def bound(misses: int) -> float:
        exact = binomtest(lesions - misses, lesions, alternative="greater")
        return float(exact.proportion_ci(0.95, "exact").low)

    few = max([misses for misses in range(lesions) if bound(misses) >= 0.90], default=0)
    for name, misses, required in (
        ("none missed in calibration", 0, 0.95),
        ("sensitivity = 0.95", few, 0.90),
    ):
        (actual,) = fit_policy([critical_lesions(scores)], TARGET, RULES[name], 0.5)
        routine = actual.target.routine
        assert actual.target.rule == name
        assert (scores < routine).sum() == misses
        assert np.sort(scores)[misses] - routine < 1e-3
        assert (actual.routine.hits, actual.routine.wanted) == (lesions - misses, required)
        assert actual.routine.lower_bound == pytest.approx(bound(misses))
        assert actual.routine.established is bool(bound(misses) >= required)


@pytest.mark.parametrize(("name", "least"), [*zip(RULES, (19, 9), strict=True)])
def test_with_too_few_critical_lesions_the_routine_threshold_stays(name: str, least: int) -> None:
    scores = np.linspace(0.4, 0.9, least)
    (enough,) = fit_policy([critical_lesions(scores)], TARGET, RULES[name], 0.5)
    assert enough.target.routine == 0.4
    target = TARGET.model_copy(update={"routine": 0.45678})
    (few,) = fit_policy([critical_lesions(scores[1:])], target, RULES[name], 0.5)
    hits = (scores[1:] >= 0.45678).sum()
    assert (few.target.routine, few.routine.hits) == (0.45678, hits)
    assert few.routine.lower_bound == lower_bound(hits, least - 1)
    assert not few.routine.established


def test_no_miss_is_allowed_among_lesions_that_share_groups() -> None:
    scores = np.linspace(0.1, 0.9, 200)
    grouped = Units(np.arange(200), np.zeros(200, int), np.arange(200) // 2, "lesion")
    images = replace(critical_lesions(scores), units=grouped)
    (actual,) = fit_policy([images], TARGET, RULES["none missed in calibration"], 0.5)
    assert (actual.target.routine, actual.routine.independent) == (0.1, 100)
    assert actual.routine.lower_bound == lower_bound(100, 100)  # of a pair, neither is independent


def urgent_threshold(scores: Floats, target: Bools, predictive_value: float) -> float | None:
    """The established threshold, or None; a lesion at 1e-4 lets the routine threshold be lower."""
    images = lesions(
        np.append(scores, 1e-4), np.append(target, False), np.arange(len(scores) + 1) == len(scores)
    )
    (actual,) = fit_policy([images], TARGET, BOUND, predictive_value)
    return actual.target.urgent if actual.urgent.established else None


@pytest.mark.parametrize("predictive_value", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("lesions", [15, 60, 120, 400])
def test_the_urgent_threshold_is_that_of_exact_tests_in_a_fixed_sequence(
    lesions: int, predictive_value: float
) -> None:
    random = np.random.default_rng(lesions)
    established = 0
    for _ in range(20):
        scores = random.beta(0.5, 1, lesions)
        target = random.random(lesions) < scores
        counts = {tested: int((scores >= tested).sum()) for tested in np.arange(99, 0, -1) / 100}
        least = 4 * math.ceil(math.log(0.05) / math.log(predictive_value))
        sequence = [tested for tested, count in counts.items() if count >= least]
        expected = None
        if sequence:
            hits = [int(target[scores >= tested].sum()) for tested in sequence]
            p_values = [
                binomtest(hit, counts[tested], predictive_value, "greater").pvalue
                for tested, hit in zip(sequence, hits, strict=True)
            ]
            rejected = control_fwer(np.array(p_values), 0.05, "fixed_sequence")
            expected = sequence[rejected[-1]] if len(rejected) else None
        assert urgent_threshold(scores, target, predictive_value) == expected
        established += expected is not None
    assert lesions < least or established > 0 or predictive_value > 0.5  # it is not trivial


def test_an_urgent_threshold_without_the_predictive_value_is_rare() -> None:
    random = np.random.default_rng(0)
    required, fits, wrong = 0.5, 400, 0
    for _ in range(fits):
        scores = random.random(150)
        target = random.random(150) < scores**2
        fitted = urgent_threshold(scores, target, required)
        if fitted is not None:
            share = (1 - fitted**3) / 3 / (1 - fitted)  # mean of s^2 from the threshold on
            wrong += share < required
    assert wrong > 0
    assert binomtest(wrong, fits, 0.05, "greater").pvalue > 0.01


def patients(count: int, seed: int) -> tuple[list[LabelledImage], Floats]:
    """Pictures of patients with eight nevi each, of whom half have one to four melanomas.

    Their scores have a common part: some patients have many nevi that look like melanomas.
    """
    random = np.random.default_rng(seed)
    melanomas = np.where(random.random(count) < 0.5, random.integers(1, 5, count), 0)
    patient = np.concatenate([np.repeat(np.arange(count), of) for of in (8, melanomas)])
    is_melanoma = np.arange(len(patient)) >= 8 * count
    noise = 1.5 * random.normal(size=count)[patient] + random.normal(size=len(patient))
    scores = 1 / (1 + np.exp(-np.where(is_melanoma, 1, -3) - noise))
    images = [
        LabelledImage(f"{n}", b"", int(label), f"patient {of}", lesion=f"lesion {n}")
        for n, (label, of) in enumerate(zip(is_melanoma, patient, strict=True))
    ]
    return images, scores


@pytest.mark.parametrize("unit", ["lesion", "group"])
def test_the_urgent_share_among_new_patients_is_as_stated_for_the_stated_unit(unit: Unit) -> None:
    """Of 200 fits with units by patient alone, where one melanoma made all nevi a hit, none held:
    they stated 0.57 with a bound of 0.52 on average, where the true share of lesions was 0.26.
    """

    def of(count: int, seed: int) -> PolicyInputs:
        images, scores = patients(count, seed)
        images = images if unit == "lesion" else [replace(one, lesion=None) for one in images]
        melanoma = np.array([one.label == 1 for one in images])
        return PolicyInputs(
            scores=scores, critical_scores=scores, entropy=scores, flags={}, critical=melanoma,
            target=melanoma, outside=np.zeros(len(scores), bool), units=Units.of(images),
        )  # fmt: skip

    population = of(4000, seed=1000)
    highest = population.units.combine(population.scores, np.maximum)
    is_melanoma = population.units.labels == 1
    fits, wrong = 40, 0
    for seed in range(fits):
        done = fit(of(300, seed))
        assert (done.unit, done.urgent.established) == (unit, True)
        assert done.urgent.independent < done.urgent.lesions
        wrong += is_melanoma[highest >= done.target.urgent].mean() < done.urgent.wanted
    assert binomtest(wrong, fits, 0.05, "greater").pvalue > 0.01


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (20, 0.99),  # as many as the first threshold needs
        (19, None),
    ],
)
def test_the_sequence_begins_where_enough_lesions_are(targets: int, expected: float | None) -> None:
    scores = np.append(np.full(targets, 0.995), 0.985)
    last = np.arange(targets + 1) == targets  # the critical one, too few to fit `routine`
    target = TARGET.model_copy(update={"routine": 0.985})  # no lower one
    (actual,) = fit_policy([lesions(scores, ~last, last)], target, BOUND, 0.5)
    assert (actual.target.urgent if actual.urgent.established else None) == expected


def test_a_lesion_counts_as_urgent_by_its_highest_image() -> None:
    images = scored(critical=40, others=40)
    units = units_of(np.repeat(np.arange(40), 2))  # 20 lesions of two critical images
    scores = np.where(np.arange(80) % 2 == 0, images.scores, 0.9)
    scores[40:] = 0.01
    actual = fit(replace(images, units=units, scores=scores))
    assert (actual.urgent.lesions, actual.urgent.hits, actual.urgent.established) == (20, 20, True)
    assert actual.target.routine == 0.9
    assert actual.target.urgent == 0.9


def test_an_urgent_threshold_that_is_not_established_stays_or_rises_to_the_routine_one() -> None:
    images = scored(critical=60)
    for before, after in ((0.9, 0.9), (0.2, 0.5)):
        target = TARGET.model_copy(update={"urgent": before})
        (actual,) = fit_policy([images], target, BOUND, 0.5)
        assert actual.target.urgent == after
        assert not actual.urgent.established
        assert actual.urgent.lesions == (images.scores >= after).sum()
        assert actual.urgent.lower_bound == lower_bound(actual.urgent.hits, actual.urgent.lesions)


def test_precisions_share_the_thresholds_that_hold_in_each_of_them() -> None:
    """The second precision has higher scores, so that more lesions reach every threshold."""
    exact = scored(critical=120, target=0, others=600)
    exact = replace(exact, scores=np.where(exact.critical, exact.scores, exact.scores * 0.5))
    shift = np.where(exact.critical, 0.0005, 0.1)
    rounded = replace(exact, scores=exact.scores + shift, entropy=exact.entropy + 0.25)
    alone = [fit(exact), fit(rounded)]
    assert alone[0].target.routine < alone[1].target.routine
    assert alone[0].target.urgent < alone[1].target.urgent
    together = fit_policy([exact, rounded], TARGET, BOUND, 0.5)
    assert fit_policy([rounded, exact], TARGET, BOUND, 0.5) == together[::-1]
    for images, actual, single in zip((exact, rounded), together, alone, strict=True):
        routine, urgent = actual.target.routine, actual.target.urgent
        assert (routine, urgent) == (alone[0].target.routine, alone[1].target.urgent)
        assert actual.entropy_nats == alone[1].entropy_nats
        assert actual.uncertain == (images.entropy >= actual.entropy_nats).mean()
        assert actual.routine.hits == (images.scores[images.critical] >= routine).sum()
        assert actual.routine.lower_bound == single.routine.lower_bound
        assert actual.urgent.lesions == (images.scores >= urgent).sum()
        assert actual.routine.established and actual.urgent.established


def test_what_holds_in_one_precision_only_is_not_established_in_the_other() -> None:
    exact = scored(critical=60, target=0, others=40)
    exact = replace(exact, scores=np.where(exact.critical, exact.scores, 0.1))
    poor = replace(exact, target=exact.target & (np.arange(100) < 5))
    established, other = fit_policy([exact, poor], TARGET, BOUND, 0.5)
    assert established.target == other.target
    assert (established.urgent.established, other.urgent.established) == (True, False)


@pytest.mark.parametrize(("critical", "others"), [(0, 10), (0, 0)])
def test_a_fit_needs_critical_images(critical: int, others: int) -> None:
    with pytest.raises(DataError, match="critical"):
        fit(scored(critical, others=others))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.333, 0.99])
@pytest.mark.parametrize("count", [1, 7, 100, 1001])
def test_the_entropy_threshold_is_the_lowest_that_at_most_the_share_reaches(
    share: float, count: int
) -> None:
    entropy = np.random.default_rng(count).uniform(0, 2, count)
    images = replace(critical_lesions(np.full(count, 0.5)), entropy=entropy)
    threshold = fit(images, share).entropy_nats
    assert (entropy >= threshold).mean() <= share
    assert (entropy >= threshold - 0.001).mean() > share


def test_tied_entropies_are_all_below_the_entropy_threshold() -> None:
    images = critical_lesions(np.full(100, 0.5))
    for entropy, threshold in ((1.5, 1.501), (0.0, 0.001)):
        assert fit(replace(images, entropy=np.full(100, entropy))).entropy_nats == threshold


def test_the_share_of_uncertain_images_is_measured() -> None:
    images = scored(critical=60, others=40)
    entropy = np.arange(100) / 100
    actual = fit(replace(images, entropy=entropy), uncertain_share=0.1)
    assert actual.entropy_nats == pytest.approx(0.89, abs=0.001)
    assert actual.uncertain == 0.1


def fitted_file(file: PolicyFile, path: Path, critical: int = 62) -> Policy:
    """Writes the file, fitted to so many critical images, to a path."""
    done, packaged = fit(scored(critical)), default_policy().evidence[0]
    known = {"unit": done.unit, "images": done.images, "routine": done.routine}
    of_fit = packaged.fit.model_copy(update=known | {"urgent": done.urgent})
    evidence = packaged.model_copy(update={"fit": of_fit, "measured": ()})
    fitted = file.fitted(done).model_copy(update={"evidence": (evidence,)})
    file.write(path, fitted)
    return fitted


def test_a_fitted_policy_changes_thresholds_version_and_evidence_only(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    head = "# our clinic's policy\n"
    own.write_text(head + default_policy_text())
    before = PolicyFile.read(own)
    fitted = fitted_file(before, own)
    after = read_policy(own)
    assert after == fitted
    assert after.version == before.policy.version + 1
    assert (after.target.routine, after.target.urgent) == (0.5, 0.5)
    assert after.uncertainty.entropy_nats == 1.001
    assert (after.quality, after.target.classes) == (
        before.policy.quality,
        before.policy.target.classes,
    )
    comments = [line for line in own.read_text().splitlines() if line.startswith("#")]
    assert comments == [line for line in before.text.splitlines() if line.startswith("#")]
    again = fitted_file(PolicyFile.read(own), own, critical=70)
    assert again.version == after.version + 1
    assert read_policy(own) == again  # the new evidence replaces the old one


def test_a_fit_removes_what_an_earlier_one_found_of_far_images(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(default_policy_text())
    before = PolicyFile.read(own)
    assert before.policy.unfamiliar is not None
    assert fitted_file(before, own).unfamiliar is None
    assert read_policy(own).unfamiliar is None


POLICY = fitted_policy()


def measured(images: PolicyInputs) -> PolicyMeasurement:
    return measure_policy(images, POLICY, "other", ("SCC",))


def test_shares_are_counted_over_the_documented_images() -> None:
    actual = measured(scored(critical=60, target=40, others=100))
    assert (actual.evidence.images, actual.evidence.lesions, actual.other_images) == (200, 200, 100)
    assert actual.specificity == 0.5
    assert counts(actual) == {
        "urgent": (60 + 40 + 50, 60),
        "unfamiliar": (0, 0),
        "refer": (5, 0),  # each tenth of the 50 images below the threshold
        "routine": (45, 0),
    }
    assert actual.evidence.referral_rate == pytest.approx(155 / 200, abs=1e-4)
    urgent = actual.target[Disposition.URGENT]
    assert urgent is not None
    assert (urgent.hits, urgent.images) == (60 + 40, 150)
    assert actual.results["urgent, target among its images"].startswith("100/150: 0.667 [")
    assert actual.results["unfamiliar, critical among its images"] == "no image"


def test_groups_are_measured_like_the_whole() -> None:
    images = scored(critical=60, target=40, others=100)
    index = np.arange(200)
    ways = np.where(index >= 150, "follow-up", "histology")  # the others with scores from 0.5
    ways[-1] = "unknown"
    described = replace(images, attributes={"diagnosed by": ways, "sex": np.full(200, "female")})
    histology = index < 150
    parts = {
        name: measured(replace(images, **{
            field.name: getattr(images, field.name)[chosen]
            for field in fields(images)
            if field.name not in ("units", "flags", "distance", "attributes")
        }, units=images.units.of_images(chosen),
           flags={reason: flags[chosen] for reason, flags in images.flags.items()}))
        for name, chosen in {
            "histology": histology, "follow-up": (index < 100) | (ways == "follow-up")
        }.items()
    }  # fmt: skip
    follow_up, by_histology = measured(described).evidence.groups  # sex has one value only
    assert (follow_up.value, by_histology.value) == ("follow-up", "histology")
    assert follow_up.sensitivity is None  # no target lesions
    for group in (follow_up, by_histology):
        whole, others = parts[group.value], parts[group.value].evidence.others
        assert group.specificity is not None
        assert group.specificity.model_dump() == {
            "lesions": others.lesions,
            "value": others.specificity,
            "low": others.specificity_low,
            "high": others.specificity_high,
        }
        assert group.auroc is not None
        assert group.auroc.value == pytest.approx(whole.ranking["target_auroc"].value, abs=1e-4)
    target = parts["histology"].evidence.target
    assert by_histology.sensitivity is not None
    assert by_histology.sensitivity.value == target.sensitivity
    assert by_histology.sensitivity.lesions == target.lesions


def counts(measurement: PolicyMeasurement) -> dict[str, tuple[int, int]]:
    """The images and the critical images of each disposition."""
    return {
        name: (0, 0) if share is None else (share.images, share.hits)
        for name, share in measurement.critical.items()
    }


def test_an_unfamiliar_image_is_urgent_from_the_urgent_threshold_on_and_never_missed() -> None:
    images = scored(critical=10, others=90)
    scores = images.scores.copy()
    scores[:3] = 0.1  # below the threshold
    unfamiliar = np.zeros(100, bool)
    unfamiliar[[0, 5, 10, 99]] = True
    actual = measured(replace(images, scores=scores, flags={Reason.UNFAMILIAR: unfamiliar}))
    melanoma = actual.evidence.critical
    assert (melanoma.urgent, melanoma.unfamiliar, melanoma.neither) == (7, 1, 2)
    assert melanoma.sensitivity == 0.8
    assert counts(actual)["unfamiliar"] == (2, 1)
    assert counts(actual)["urgent"] == (7 + 45, 7)
    assert actual.specificity == 44 / 90  # 45 are below the threshold, one of them unfamiliar
    assert sum(images for images, _ in counts(actual).values()) == 100
    routine, _ = counts(actual)["routine"]
    assert actual.evidence.referral_rate == pytest.approx(1 - routine / 100, abs=1e-4)


def test_a_lesion_between_the_thresholds_is_referred_and_the_urgent_ones_are_counted() -> None:
    target = POLICY.target.model_copy(update={"routine": 0.4, "urgent": 0.8})
    policy = POLICY.model_copy(update={"target": target})
    images = replace(
        scored(critical=4, others=6),
        scores=np.array([0.9, 0.9, 0.5, 0.3, 0.9, 0.1, 0.5, 0.4, 0.39, 0.2]),
        units=units_of("mnnoaabbcd"),
        flags={},
    )
    evidence = measure_policy(images, policy, "other").evidence
    melanoma, others, urgent = evidence.critical, evidence.others, evidence.urgent
    assert (melanoma.urgent, melanoma.refer, melanoma.neither) == (2, 0, 1)
    assert (others.urgent, others.refer, others.neither) == (1, 1, 2)
    assert (melanoma.reached, others.reached) == (2, 2)
    assert melanoma.sensitivity == 0.6666
    assert urgent is not None
    assert (urgent.lesions, urgent.target, urgent.predictive_value) == (3, 2, 0.6666)
    assert urgent.predictive_value_low < 0.6666 < urgent.predictive_value_high
    below = replace(images, scores=images.scores / 2)
    assert measure_policy(below, policy, "other").evidence.urgent is None


def test_a_target_lesion_is_missed_only_if_all_its_images_are() -> None:
    images = scored(critical=6)
    scores = images.scores.copy()
    scores[[1, 2, 3, 4, 5]] = 0.1
    unfamiliar = np.zeros(106, bool)
    unfamiliar[[0, 3]] = True
    units = units_of(
        [0, 0, 1, 1, 2, 2, *range(6, 106)]
    )  # urgent, missed; missed, unfamiliar; missed
    flags = {Reason.UNFAMILIAR: unfamiliar}
    sex = np.repeat(["male", "female"], [6, 100])
    changed = replace(images, scores=scores, flags=flags, units=units, attributes={"sex": sex})
    evidence = measured(changed).evidence
    melanoma, (_, male) = evidence.critical, evidence.groups
    assert male.sensitivity is not None
    assert (male.sensitivity.lesions, male.sensitivity.value) == (3, melanoma.sensitivity)
    seen = (melanoma.lesions, melanoma.urgent, melanoma.unfamiliar, melanoma.neither)
    assert (*seen, melanoma.reached) == (3, 1, 1, 1, 1)


def test_an_other_lesion_is_spared_only_if_all_its_images_are() -> None:
    images = replace(
        scored(critical=1, others=6),
        scores=np.array([0.9, 0.1, 0.9, 0.1, 0.1, 0.1, 0.1]),
        flags={Reason.UNFAMILIAR: np.arange(7) == 4},
        units=units_of("maabbcc"),  # m; urgent, unfamiliar, spared
    )
    others = measured(images).evidence.others
    seen = (others.lesions, others.urgent, others.unfamiliar, others.neither, others.reached)
    assert (seen, others.specificity) == ((3, 1, 1, 1, 1), 0.3333)


def test_the_curves_count_lesions_on_either_side_of_every_threshold() -> None:
    images = replace(
        scored(critical=3, others=4),
        scores=np.array([0.9, 0.2, 0.6, 0.9, 0.1, 0.3, 0.05]),
        units=units_of("mmkaabc"),  # melanomas 0.9 and 0.6
    )
    curves = measured(images).curves
    above = int(np.searchsorted(CURVE_THRESHOLDS, 0.7))  # m of two melanomas; b and c of three
    for name, hits, count in (
        ("sensitivity", 1, 2),
        ("specificity", 2, 3),
        ("predictive value", 1, 2),  # m and a
    ):
        expected = binomtest(hits, count).proportion_ci(0.95, "exact")
        assert curves[name][above] == pytest.approx([hits / count, expected.low, expected.high])
    below = replace(images, scores=images.scores / 1000)
    assert np.isnan(measured(below).curves["predictive value"][-1]).all()


def test_ranking_uses_images_and_the_probability_of_each_group() -> None:
    images = scored(critical=20, target=20, others=200)
    outside = np.zeros(240, bool)
    outside[-40:] = True  # scores of 0.8 and more
    generator = np.random.default_rng(0)
    changed = replace(images, outside=outside, critical_scores=generator.random(240))
    actual = measured(changed).ranking
    kept = slice(200)
    expected = {
        "critical_auroc": roc_auc_score(changed.critical[kept], changed.critical_scores[kept]),
        "target_auroc": roc_auc_score(changed.target[kept], changed.scores[kept]),
    }
    negatives = np.sort(changed.critical_scores[20:200])
    limit = negatives[161]  # 162 of 180 are spared above it, which is 0.9
    expected["critical_sensitivity"] = (changed.critical_scores[:20] > limit).mean()
    for name, value in expected.items():
        estimate = actual[name]
        assert estimate is not None
        assert estimate.value == pytest.approx(value)
        assert estimate.low <= value <= estimate.high


def test_target_lesions_without_a_class_count_in_no_other_group() -> None:
    images = scored(critical=10, target=7, others=20)
    outside = np.zeros(37, bool)
    outside[[10, 11, 35, 36]] = True
    inside = images.target & ~outside
    actual = measured(replace(images, target=inside, outside=outside))
    assert actual.evidence.outside is not None
    assert actual.evidence.outside.lesions == actual.evidence.outside.urgent == 4
    assert (actual.evidence.target.lesions, actual.evidence.others.lesions) == (15, 18)
    assert measured(images).evidence.outside is None


def test_the_interval_of_the_sensitivity_is_exact() -> None:
    images = scored(critical=40)
    scores = images.scores.copy()
    scores[:3] = 0
    melanoma = measured(replace(images, scores=scores)).evidence.critical
    expected = binomtest(37, 40).proportion_ci(0.95, "exact")
    assert melanoma.sensitivity_low == math.floor(expected.low * 1e4) / 1e4
    assert melanoma.sensitivity_high == math.ceil(expected.high * 1e4) / 1e4


@pytest.mark.parametrize(("critical", "others"), [(0, 10), (10, 0)])
def test_a_measurement_needs_critical_and_other_images(critical: int, others: int) -> None:
    with pytest.raises(DataError, match="critical"):
        measured(scored(critical, others=others))
