"""Trajectories of images and their summary."""

import pytest
import torch
from torch import Generator, Tensor

from eulerlora import summarise
from eulerlora.answer import Predictions
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora.scores.trajectories import Trajectories
from eulerlora.scores.uncertainty import variance_of
from eulerlora_contract.errors import NonFiniteError
from tests.conftest import THRESHOLDS


def random_trajectories(images: int = 6, samples: int = 4, seed: int = 0) -> Trajectories:
    """Two adapters, three classes and five features."""
    generator = Generator().manual_seed(seed)
    return Trajectories.of(
        torch.randn(images, 2, samples, 3, generator=generator, dtype=torch.float64),
        torch.randn(images, 2, samples, 5, generator=generator),
        torch.randint(8, (images, 2, samples), generator=generator),
    )


def of_logits(logits: Tensor) -> Trajectories:
    shape = logits.shape[:-1]
    return Trajectories.of(logits.double(), torch.zeros(*shape, 1), torch.zeros(shape).long())


def test_log_probabilities_stay_finite_where_the_probability_is_not_representable() -> None:
    actual = of_logits(torch.tensor([[[[0.0, 5000.0]]]])).flat_log_probabilities
    assert actual.tolist() == [[[-5000.0, 0.0]]]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_a_logit_that_is_not_finite_is_all_nan_and_other_rows_are_not(
    broken: float,
) -> None:
    logits = torch.zeros(1, 1, 3, 4)
    logits[0, 0, 1, 2] = broken
    trajectories = of_logits(logits)
    assert trajectories.flat_log_probabilities[0, 1].isnan().all()
    assert trajectories.flat_log_probabilities[0, [0, 2]].isfinite().all()
    with pytest.raises(NonFiniteError):
        Predictions.of(trajectories)
    trajectories.first(1).check_finite()


@pytest.fixture(scope="module")
def distance() -> FeatureDistance:
    generator = Generator().manual_seed(1)
    factor = torch.randn(9, 5, generator=generator)
    return FeatureDistance(
        FeatureStatistics(torch.randn(3, 5, generator=generator), factor.T @ factor)
    )


def test_images_with_different_numbers_of_samples_have_the_summary_of_theirs(
    distance: FeatureDistance,
) -> None:
    whole, counts = random_trajectories(), torch.tensor([1, 4, 2, 2, 4, 1])
    few = whole.first(counts)
    actual = Predictions.of(few, distance, THRESHOLDS[1])
    torch.testing.assert_close(
        actual.log_probabilities, few.flat_log_probabilities, rtol=0, atol=0, equal_nan=True
    )
    assert actual.ood_scores["msp"].threshold == THRESHOLDS[1].msp
    for index, count in enumerate(counts.tolist()):
        alone = whole.images(slice(index, index + 1)).first(count)
        assert few.log_probabilities[index, :, count:].isnan().all()
        rows, views = alone.log_probabilities.exp(), alone.views
        expected = summarise(rows.flatten(1, 2))
        for name, value in vars(expected).items():
            torch.testing.assert_close(getattr(actual, name)[index], value[0])
        for name, value in vars(variance_of(rows, views)).items():
            torch.testing.assert_close(getattr(actual.variance, name)[index], value[0])
        features = alone.features.mean(dim=(1, 2))
        scores = {
            "msp": expected.msp,
            "energy": -alone.log_partition.mean(dim=(1, 2)),
            "feature_distance": distance(features),
        }
        for name, score in scores.items():
            torch.testing.assert_close(actual.ood_scores[name].value[index], score[0])


def test_an_image_behind_others_keeps_its_samples_and_is_filled_with_nan_and_view_0() -> None:
    few, many = random_trajectories(2, 1, seed=1), random_trajectories(3, 4, seed=2)
    both = Trajectories.cat([few, many])
    assert both.samples.tolist() == [1, 1, 4, 4, 4]
    assert both.log_probabilities[:2, :, 1:].isnan().all()
    assert not both.views[:2, :, 1:].any()
    both.check_finite()
    for part, images in ((few, slice(2)), (many, slice(2, None))):
        torch.testing.assert_close(
            Predictions.of(both.images(images)).entropy, Predictions.of(part).entropy
        )


def test_later_samples_follow_the_earlier_ones_of_each_adapter() -> None:
    whole = random_trajectories()
    parts = [
        Trajectories.of(
            *(v[:, :, part] for v in (whole.log_probabilities, whole.features, whole.views))
        )
        for part in (slice(1), slice(1, 4))
    ]
    joined = parts[0].then(parts[1])
    torch.testing.assert_close(joined.log_probabilities, whole.log_probabilities)
    assert torch.equal(joined.views, whole.views)
    assert torch.equal(joined.samples, whole.samples)


def test_an_ensemble_has_the_trajectories_of_every_member_for_each_image() -> None:
    members = [random_trajectories(seed=seed) for seed in (0, 1, 2)]
    joined = Trajectories.of_ensemble(members)
    assert joined.samples.tolist() == [4] * 6
    expected = torch.cat([member.flat_log_probabilities for member in members], dim=1)
    assert torch.equal(joined.flat_log_probabilities, expected)
    assert torch.equal(joined.features[:, 4:], members[2].features)
    assert torch.equal(joined.views[:, 2:4], members[1].views)


def test_a_temperature_divides_the_logits() -> None:
    logits = torch.randn(4, 2, 3, 5, generator=Generator().manual_seed(3)).double()
    actual, expected = of_logits(logits).at(2.0), of_logits(logits / 2)
    torch.testing.assert_close(actual.log_probabilities, expected.log_probabilities)
    torch.testing.assert_close(actual.log_partition, expected.log_partition)


def test_the_agreement_is_the_least_lead_of_the_label_over_another_class() -> None:
    rows = torch.tensor(
        [[[[0.6, 0.3, 0.1], [0.2, 0.4, 0.4]]], [[[0.6, 0.3, 0.1], [0.5, 0.2, 0.3]]]]
    )
    agreement = Predictions.of(of_logits(rows.log())).agreement
    torch.testing.assert_close(agreement.exp(), torch.tensor([0.2 / 0.4, 0.5 / 0.3]).double())
