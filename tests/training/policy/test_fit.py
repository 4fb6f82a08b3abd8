"""The fit of the urgent threshold agrees with counts by hand and with predictions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.checkpoint import load_checkpoint
from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from training.data.labelled_images import LabelledImage
from training.data.sources import list_images
from training.evaluation.inference import SamplingOptions
from training.policy.file import PolicyRules
from training.policy.fit import ScoredImages, fit_threshold, score_images

RULES = PolicyRules(malignant=("mel",), entropy_nats=0.9)


def scored(melanomas: int, malignant: int = 0, others: int = 100) -> ScoredImages:
    """Returns melanomas scored from 0.5, other malignant images 0.6, others from 0 to 1."""
    scores = np.concatenate(
        [0.5 + np.arange(melanomas) / 1000, np.full(malignant, 0.6), np.arange(others) / others]
    )
    count = len(scores)
    index = np.arange(count)
    return ScoredImages(
        scores=scores,
        uncertain=index % 10 == 0,
        melanoma=index < melanomas,
        malignant=index < melanomas + malignant,
        lesions=index.astype(str),
    )


@pytest.mark.parametrize(("melanomas", "established"), [(58, False), (59, True)])
def test_59_melanomas_without_a_miss_establish_95_per_cent(
    melanomas: int, established: bool
) -> None:
    actual = fit_threshold(scored(melanomas), 0.95)
    assert actual.threshold == 0.5
    assert (actual.melanoma.hits, actual.melanoma.share) == (melanomas, 1.0)
    assert actual.melanoma.established is established


def test_shares_are_counted_over_the_documented_images() -> None:
    actual = fit_threshold(scored(melanomas=60, malignant=40, others=100), 0.95)
    assert (actual.images, actual.lesions, actual.other_images) == (200, 200, 100)
    assert (actual.melanoma_hits, actual.melanoma_images) == (60, 60)
    assert actual.specificity == 0.5
    assert actual.urgent == (60 + 40 + 50) / 200
    assert actual.refer == 5 / 200  # each tenth of the 50 images below the threshold
    assert actual.urgent + actual.refer + actual.routine == 1
    assert actual.referral_rate == actual.urgent + actual.refer


def test_a_lesion_with_one_image_below_the_threshold_is_missed() -> None:
    images = scored(melanomas=100)
    lesions = images.lesions.copy()
    lesions[1] = lesions[0]
    actual = fit_threshold(replace(images, lesions=lesions), 0.95)
    assert actual.melanoma.lesions == 99
    assert actual.threshold == 0.502  # one miss is allowed: the lesion of the two lowest images
    assert actual.melanoma.hits == 98
    assert (actual.melanoma_hits, actual.melanoma_images) == (98, 100)


@pytest.mark.parametrize(("melanomas", "others"), [(0, 10), (10, 0)])
def test_a_fit_needs_melanomas_and_other_images(melanomas: int, others: int) -> None:
    with pytest.raises(DataError, match="melanoma"):
        fit_threshold(scored(melanomas, others=others), 0.95)


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))


@pytest.fixture(scope="module")
def images(image_folder: Path) -> list[LabelledImage]:
    sources = list_images(image_folder / "test").items()
    return [LabelledImage(name, source, n % 3) for n, (name, source) in enumerate(sources)]


def test_scores_and_uncertainty_agree_with_predictions(
    model: EulerLoRA, images: list[LabelledImage], image_folder: Path
) -> None:
    lesions = {images[0].name: "twins", images[1].name: "twins"}
    actual = score_images(model, images, lesions, SamplingOptions("stoch", 4), RULES)
    paths = [image_folder / "test" / image.name for image in images]
    predicted = model.predict(paths, "stoch", 4)
    mel = model.classes.index("mel")
    assert predicted.ood is not None
    assert actual.scores == pytest.approx(predicted.probabilities[:, mel].numpy(), abs=1e-6)
    for index, rows in enumerate(predicted.trajectories.argmax(dim=-1).tolist()):
        uncertain = predicted.ood[index] or predicted.entropy[index] >= 0.9 or len(set(rows)) > 1
        assert actual.uncertain[index] == uncertain
    assert actual.uncertain.any()
    assert not actual.uncertain.all()
    assert actual.melanoma.tolist() == [image.label == mel for image in images]
    assert actual.lesions[:2].tolist() == ["twins", "twins"]
    assert len(set(actual.lesions.tolist())) == len(images) - 1


def test_without_an_ood_threshold_every_image_is_uncertain(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    options = SamplingOptions("stoch", 3)
    assert score_images(model, images[:3], {}, options, RULES).uncertain.all()


def test_a_model_without_the_policy_s_classes_is_refused(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    rules = PolicyRules(malignant=("mel", "bcc"), entropy_nats=1)
    with pytest.raises(DataError, match="classes bcc, got tiny with bkl, mel, nv"):
        score_images(model, images, {}, SamplingOptions("det"), rules)
