"""The scores of images agree with predictions."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.errors import DataError
from eulerlora.model import EulerLoRA
from eulerlora.scores.feature_distance import FeatureDistance, FeatureStatistics
from eulerlora_client.contract.answers import ScoreThreshold
from training.data.images import LabelledImage, list_images
from training.evaluation.inference import SamplingOptions, predict_all
from training.policy.scores import score_images


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))


@pytest.fixture(scope="module")
def images(image_folder: Path) -> list[LabelledImage]:
    sources = list_images(image_folder / "test").items()
    return [LabelledImage(name, source, n % 3) for n, (name, source) in enumerate(sources)]


def similar_adapters(folder: Path) -> EulerLoRA:
    """Returns a model with one head and weak adapters, whose trajectories often agree."""
    checkpoint = load_checkpoint(folder)
    with torch.no_grad():
        for name, parameter in checkpoint.network.adapter_parameters():
            if name.startswith("heads"):
                parameter[1:] = parameter[:1]
            else:
                parameter.mul_(0.5)
    return EulerLoRA(checkpoint, torch.device("cpu"))


def test_scores_entropy_and_doubt_agree_with_predictions(
    checkpoint_folder: Path, images: list[LabelledImage], image_folder: Path
) -> None:
    model = similar_adapters(checkpoint_folder)
    twins = [replace(image, cluster="twins") for image in images[:2]]
    shown = [*twins, *images[2:]]
    actual = score_images(model, shown, SamplingOptions("stoch", 4), ("mel",), "test")
    paths = [image_folder / "test" / image.name for image in images]
    predicted = model.predict(paths, "stoch", 4)
    mel = model.classes.index("mel")
    assert predicted.ood is not None
    assert actual.scores == pytest.approx(predicted.probabilities[:, mel].numpy(), abs=1e-6)
    assert actual.melanoma_scores.tolist() == actual.scores.tolist()  # the group is melanoma alone
    assert actual.entropy == pytest.approx(predicted.entropy.numpy(), abs=1e-6)
    for index, rows in enumerate(predicted.trajectories.argmax(dim=-1).tolist()):
        assert actual.doubtful[index] == (predicted.ood[index] or len(set(rows)) > 1)
    assert actual.doubtful.any()
    assert not actual.doubtful.all()
    assert actual.melanoma.tolist() == [image.label == mel for image in images]
    assert actual.lesions[:2].tolist() == ["twins", "twins"]
    assert len(set(actual.lesions.tolist())) == len(images) - 1


def test_the_feature_distance_flags_as_in_predictions(
    checkpoint_folder: Path, images: list[LabelledImage], image_folder: Path
) -> None:
    options = SamplingOptions("stoch", 4)
    model = familiar_half(checkpoint_folder, images, options)
    actual = score_images(model, images, options, ("mel",), "test")
    paths = [image_folder / "test" / image.name for image in images]
    predicted = model.predict(paths, "stoch", 4)
    assert predicted.unfamiliar is not None
    assert actual.unfamiliar.tolist() == predicted.unfamiliar.tolist()
    assert actual.unfamiliar.any()
    assert not actual.unfamiliar.all()


def familiar_half(folder: Path, images: list[LabelledImage], options: SamplingOptions) -> EulerLoRA:
    """Returns a model whose feature distance flags about half of the images."""
    checkpoint = load_checkpoint(folder)
    model = EulerLoRA(checkpoint, torch.device("cpu"))
    (outputs,) = predict_all(model, images, [options], "test")
    features = outputs.features.mean(dim=(1, 2))
    statistics = FeatureStatistics(features[:1], torch.eye(features.shape[1]))
    distance = FeatureDistance(statistics)
    median = float(distance(features).median())
    limit = ScoreThreshold(threshold=median, kept=0.5, upper_quartile=median)
    thresholds = tuple(
        threshold.model_copy(update={"feature_distance": limit})
        for threshold in checkpoint.config.thresholds
    )
    config = checkpoint.config.model_copy(update={"thresholds": thresholds})
    changed = replace(checkpoint, config=config, feature_distance=distance)
    return EulerLoRA(changed, torch.device("cpu"))


def test_without_an_ood_threshold_every_image_is_doubtful(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    options = SamplingOptions("stoch", 3)
    actual = score_images(model, images[:3], options, ("mel",), "test")
    assert actual.doubtful.all()
    assert not actual.unfamiliar.any()


def test_a_model_without_the_policy_s_classes_is_refused(
    model: EulerLoRA, images: list[LabelledImage]
) -> None:
    with pytest.raises(DataError, match="classes bcc, got tiny with bkl, mel, nv"):
        score_images(model, images, SamplingOptions("det"), ("mel", "bcc"), "test")
