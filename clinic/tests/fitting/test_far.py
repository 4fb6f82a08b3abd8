"""The fit of `[unfamiliar]` agrees with counts of lesions one by one."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from eulerlora_clinic.fitting.far import FarLesions, HalvedArchive, fit_far
from eulerlora_clinic.fitting.policy import PolicyInputs, measure_policy
from eulerlora_clinic.policy.policy import Policy, UnfamiliarRules, default_policy
from eulerlora_contract.answers import Disposition, Reason
from eulerlora_contract.errors import DataError
from tests.training.conftest import units_of
from training.data.images import OUTSIDE, LabelledImage

URGENT = 0.5


def scored(seed: int, images: int = 900, lesions: int = 600) -> PolicyInputs:
    """Images of lesions of which most are of the target; some images lose their urgency by ood."""
    random = np.random.default_rng(seed)
    lesion = random.integers(lesions, size=images)
    kind = random.choice(["target", "outside", "other"], size=lesions, p=[0.7, 0.1, 0.2])[lesion]
    return PolicyInputs(
        scores=random.random(images),
        critical_scores=random.random(images),
        entropy=random.random(images),
        flags={
            Reason.UNFAMILIAR: random.random(images) < 0.2,
            Reason.OUT_OF_DISTRIBUTION: random.random(images) < 0.2,
        },
        critical=kind == "target",
        target=kind == "target",
        outside=kind == "outside",
        units=units_of(lesion.tolist()),
        distance=random.gamma(9, 2, images),
    )


def by_lesion(images: PolicyInputs) -> dict[int, list[tuple[float, bool]]]:
    """The distance and the loss of urgency of each image of every target lesion."""
    lesions = defaultdict(list)
    for index, lesion in enumerate(images.units.indices.tolist()):
        if images.target[index] or images.outside[index]:
            loses = (
                images.scores[index] >= URGENT
                and images.flags[Reason.UNFAMILIAR][index]
                and images.flags[Reason.OUT_OF_DISTRIBUTION][index]
            )
            lesions[lesion].append((images.distance[index], bool(loses)))
    return lesions


def test_far_is_the_lowest_distance_that_at_most_one_lesion_of_two_hundred_reaches() -> None:
    for seed in range(5):
        parts = [scored(2 * seed), scored(2 * seed + 1, images=40, lesions=25)]
        lesions = [FarLesions.of(f"{n}", "fit", one, URGENT) for n, one in enumerate(parts)]
        unseen = FarLesions.of("more", "measured", scored(99), URGENT)
        far = fit_far([[*lesions, unseen]]).far
        farthest = [
            max(distance for distance, _ in images)
            for one in parts
            for images in by_lesion(one).values()
        ]
        allowed = len(farthest) * 5 // 1000
        assert allowed > 0
        assert sum(value >= far for value in farthest) <= allowed
        assert sum(value >= far * 0.999 for value in farthest) > allowed
        evidence = lesions[0].evidence(UnfamiliarRules(far=far, ood=False))
        assert evidence.lesions == len(by_lesion(parts[0]))
        assert evidence.far == sum(value >= far for value in farthest[: evidence.lesions])


@pytest.mark.parametrize("losing", range(6))
def test_ood_is_in_force_if_at_most_one_lesion_of_two_hundred_loses_its_urgency(
    losing: int,
) -> None:
    images = scored(7)
    losses = {lesion: any(lost for _, lost in of) for lesion, of in by_lesion(images).items()}
    lost = [lesion for lesion, loses in losses.items() if loses]
    assert len(lost) > 6
    kept = np.isin(images.units.indices, lost[losing:])
    flags = images.flags | {Reason.UNFAMILIAR: images.flags[Reason.UNFAMILIAR] & ~kept}
    lesions = FarLesions.of("synthetic", "fit", replace(images, flags=flags), URGENT)
    rules = fit_far([[lesions]])
    assert lesions.evidence(rules).ood == losing
    assert rules.ood is (Fraction(losing, len(losses)) <= Fraction(5, 1000))


def test_one_of_two_hundred_lesions_may_be_far_and_lose_its_urgency() -> None:
    one = FarLesions("synthetic", "fit", "lesion", np.arange(1.0, 201), np.arange(200) == 0)
    rules = fit_far([[one]])
    assert (rules.ood, one.evidence(rules).far) == (True, 1)
    fewer = replace(one, distance=one.distance[:199], loses=one.loses[:199])
    rules = fit_far([[fewer]])
    assert (rules.ood, fewer.evidence(rules).far) == (False, 0)


def test_both_hold_in_every_precision() -> None:
    exact = FarLesions.of("synthetic", "fit", scored(3), URGENT)
    none = replace(exact, loses=np.zeros_like(exact.loses))
    near = replace(none, distance=none.distance / 2)
    assert not fit_far([[near], [exact]]).ood
    assert fit_far([[near], [none]]) == fit_far([[none], [near]]) == fit_far([[none]])


def test_halves_have_no_common_group_and_half_of_every_class() -> None:
    random = np.random.default_rng(0)
    images = [
        LabelledImage(f"{n}", b"", int(label), cluster=f"patient {n // 3}", lesion=f"{n // 2}")
        for n, label in enumerate(random.choice([OUTSIDE, 0, 1, 2], size=600))
    ]
    archive = HalvedArchive.of("synthetic", images, [0, 2])
    fitted, measured = archive.parts["fit"], archive.parts["measured"]
    assert {image.name for image in (*fitted, *measured)} == {
        image.name for image in images if image.label != 1
    }
    assert not {one.cluster for one in fitted} & {one.cluster for one in measured}
    for label in (OUTSIDE, 0, 2):
        counts = [sum(image.label == label for image in half) for half in (fitted, measured)]
        assert counts[0] == pytest.approx(counts[1], rel=0.2)
    again = HalvedArchive.of("synthetic", images[::-1], [0, 2])
    assert {one.name for one in again.parts["fit"]} == {one.name for one in fitted}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distance": None}, "feature statistics"),
        ({"target": np.zeros(900, bool), "outside": np.zeros(900, bool)}, "target classes"),
    ],
)
def test_a_fit_needs_target_lesions_and_distances(changes, message) -> None:
    with pytest.raises(DataError, match=message):
        FarLesions.of("synthetic", "fit", replace(scored(0), **changes), URGENT)


@pytest.mark.parametrize("ood", [True, False])
def test_a_measurement_counts_far_images_as_unfamiliar(ood: bool) -> None:
    images = scored(5)
    policy: Policy = default_policy().model_copy(
        update={"unfamiliar": UnfamiliarRules(far=20, ood=ood)}
    )
    assert images.distance is not None
    urgent = images.scores >= policy.target.urgent
    unfamiliar = images.flags[Reason.UNFAMILIAR]
    far = unfamiliar & (images.distance >= 20)
    if ood:
        far |= unfamiliar & images.flags[Reason.OUT_OF_DISTRIBUTION]
    assert (far & urgent).any() and (unfamiliar & urgent & ~far).any()
    seen = measure_policy(images, policy, "synthetic", ("SCC",)).target
    counts = {name: 0 if share is None else share.images for name, share in seen.items()}
    assert counts[Disposition.URGENT] == (urgent & ~far).sum()
    assert counts[Disposition.UNFAMILIAR] == (unfamiliar & (far | ~urgent)).sum()
