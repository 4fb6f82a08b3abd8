"""Thresholds and figures, held to counting by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch

from eulerlora.checkpoint import load_checkpoint
from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from training.data.datasets import LabelledImage
from training.data.image_sources import list_images
from training.policy.file import PolicyRules
from training.policy.fit import Answers, ask, fit

RULES = PolicyRules(malignant=("mel",), entropy_nats=0.9)


def answers(melanomas: int, malignant: int = 0, others: int = 100) -> Answers:
    """Melanomas at 0.5 and up, other malignant images at 0.6, the others from 0 to 0.99."""
    scores = np.concatenate(
        [0.5 + np.arange(melanomas) / 1000, np.full(malignant, 0.6), np.arange(others) / others]
    )
    count = len(scores)
    index = np.arange(count)
    return Answers(
        scores=scores,
        unsure=index % 10 == 0,
        melanoma=index < melanomas,
        malignant=index < melanomas + malignant,
        lesions=index.astype(str),
    )


@pytest.mark.parametrize(("melanomas", "established"), [(58, False), (59, True)])
def test_59_melanomas_without_a_miss_are_the_border(melanomas: int, established: bool) -> None:
    found = fit(answers(melanomas), 0.95)
    assert found.threshold == 0.5
    assert (found.melanoma.found, found.melanoma.share) == (melanomas, 1.0)
    assert found.melanoma.established is established


def test_every_share_is_of_the_images_that_it_names() -> None:
    found = fit(answers(melanomas=60, malignant=40, others=100), 0.95)
    assert (found.images, found.lesions, found.others) == (200, 200, 100)
    assert found.melanoma_images == (60, 60)
    assert found.specificity == 0.5
    assert found.urgent == (60 + 40 + 50) / 200
    assert found.refer == 5 / 200  # each tenth of the 50 images below the threshold
    assert found.urgent + found.refer + found.routine == 1
    assert found.referral_rate == found.urgent + found.refer


def test_a_lesion_with_one_image_below_the_threshold_is_missed() -> None:
    given = answers(melanomas=100)
    lesions = given.lesions.copy()
    lesions[1] = lesions[0]
    found = fit(Answers(given.scores, given.unsure, given.melanoma, given.malignant, lesions), 0.95)
    assert found.melanoma.lesions == 99
    assert found.threshold == 0.502  # one miss is allowed: the lesion of the two lowest images
    assert found.melanoma.found == 98
    assert found.melanoma_images == (98, 100)


@pytest.mark.parametrize(("melanomas", "others"), [(0, 10), (10, 0)])
def test_nothing_to_tell_apart_is_an_error(melanomas: int, others: int) -> None:
    with pytest.raises(DataError, match="melanoma"):
        fit(answers(melanomas, others=others), 0.95)


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))


@pytest.fixture(scope="module")
def images(image_folder: Path) -> list[LabelledImage]:
    found = list_images(image_folder / "test")
    return [LabelledImage(name, source, n % 3) for n, (name, source) in enumerate(found.items())]


def test_what_is_asked_is_what_the_model_predicts(
    model: EulerLoRA, images: list[LabelledImage], image_folder: Path
) -> None:
    lesions = {images[0].name: "twins", images[1].name: "twins"}
    found = ask(model, images, lesions, ("stoch", 4), RULES)
    paths = [image_folder / "test" / each.name for each in images]
    predicted = model.predict(paths, "stoch", 4)
    mel = model.classes.index("mel")
    assert predicted.ood is not None
    assert found.scores == pytest.approx(predicted.probabilities[:, mel].numpy(), abs=1e-6)
    for index, rows in enumerate(predicted.trajectories.argmax(dim=-1).tolist()):
        unsure = predicted.ood[index] or predicted.entropy[index] >= 0.9 or len(set(rows)) > 1
        assert found.unsure[index] == unsure
    assert found.unsure.any()
    assert not found.unsure.all()
    assert found.melanoma.tolist() == [each.label == mel for each in images]
    assert found.lesions[:2].tolist() == ["twins", "twins"]
    assert len(set(found.lesions.tolist())) == len(images) - 1


def test_without_an_ood_threshold_every_image_is_unsure(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    assert ask(model, images[:3], {}, ("stoch", 3), RULES).unsure.all()


def test_a_model_without_the_policys_classes_is_an_error_that_names_them(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    rules = PolicyRules(malignant=("mel", "bcc"), entropy_nats=1)
    with pytest.raises(DataError, match="needs the classes bcc; the model tiny has bkl, mel, nv"):
        ask(model, images, {}, ("det", 1), rules)
