"""Linear probes.

The metrics of every epoch, and the adapters of the epoch with the lowest validation loss.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, log_loss
from sklearn.preprocessing import StandardScaler

from eulerlora.answer import Predictions
from eulerlora.images.preprocess import resize
from eulerlora.methods.registry import build_network
from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import DataError
from tests.conftest import predict_rows, random_backbone, random_network
from tests.training.synthetic_report import REPORT
from training.adaptation.objective import AdapterObjective
from training.adaptation.probe import (
    compare_with_probe,
    fit_heads,
    head_log_probabilities,
)
from training.adaptation.validation import EpochValidation
from training.data.images import ImageParts, LabelledImage
from training.evaluation.mode_report import EvaluatedSet
from training.recipe.schema import AdapterTraining
from training.reporting.report import markdown

CPU = torch.device("cpu")


def images_of(labels: list[int], seed: int) -> list[LabelledImage]:
    """Noise whose brightness grows with the label."""
    generator = torch.Generator().manual_seed(seed)
    return [
        LabelledImage(
            str(index),
            (40 * label + torch.randint(0, 130, (3, 40, 36), generator=generator)).to(torch.uint8),
            label,
        )
        for index, label in enumerate(labels)
    ]


@pytest.fixture
def images() -> ImageParts:
    """Three classes without calibration and test parts, which a probe must not read."""
    classes = tuple(ClassName(name=str(name), description="-") for name in range(3))
    parts = {
        "train": images_of([0] * 20 + [1] * 12 + [2] * 8, seed=0),
        "validation": images_of([0] * 6 + [1] * 4 + [2] * 4, seed=1),
    }
    return ImageParts("squares", classes, parts)


@pytest.mark.parametrize("classes", [2, 3])
def test_fitted_heads_predict_like_the_regression_before_the_first_step(
    images: ImageParts, classes: int
) -> None:
    train = [image for image in images.parts["train"] if image.label < classes]
    held_out = images.parts["validation"]
    backbone = random_backbone().eval()
    network = build_network(backbone, AdapterSettings(adapters=2, rank=2, min_rank=1), 3)
    network.initialise(torch.Generator().manual_seed(0))
    fit_heads(network, ImageParts("squares", images.classes, {"train": train}), CPU)

    def pixels(part: list[LabelledImage]) -> torch.Tensor:
        return torch.stack([resize(image.source, 32) for image in part])

    with torch.no_grad():
        features = [backbone(pixels(part)).double().numpy() for part in (train, held_out)]
    scaler = StandardScaler().fit(features[0])
    plain = LogisticRegression(C=0.01, max_iter=1000)
    plain.fit(scaler.transform(features[0]), [image.label for image in train])
    expected_probabilities = plain.predict_proba(scaler.transform(features[1]))
    draws = [Draw(mode="stoch", samples=2)] * len(held_out)
    for trajectories, expected in zip(
        predict_rows(network, pixels(held_out), draws), expected_probabilities, strict=True
    ):
        assert len(trajectories) == 4
        for probabilities in trajectories.exp().numpy():
            np.testing.assert_allclose(probabilities[:classes], expected, atol=1e-4)


def test_bootstrap_probes_differ_and_each_is_the_probe_of_a_resample_of_clusters(
    images: ImageParts,
) -> None:
    train = [replace(i, cluster=f"lesion {n // 2}") for n, i in enumerate(images.parts["train"])]
    parts = ImageParts("squares", images.classes, {"train": train})
    backbone = random_backbone().eval()
    network = build_network(backbone, AdapterSettings(adapters=2, rank=2, min_rank=1), 3)
    fit_heads(network, parts, CPU, bootstrap_seed=5)
    heads = network.heads.weight.detach().clone()
    assert not torch.allclose(heads[0], heads[1], atol=1e-3)
    fit_heads(network, parts, CPU, bootstrap_seed=5)
    assert torch.equal(network.heads.weight, heads)

    generator, clusters = np.random.default_rng(5), sorted({image.cluster for image in train})
    drawn = [clusters[index] for index in generator.integers(len(clusters), size=len(clusters))]
    repeated = [image for name in drawn for image in train if image.cluster == name]
    one = build_network(backbone, AdapterSettings(adapters=1, rank=2, min_rank=1), 3)
    fit_heads(one, ImageParts("drawn", images.classes, {"train": repeated}), CPU)
    pixels = torch.stack([resize(image.source, 32) for image in train])
    features = backbone(pixels)
    logits = [features @ head.weight[0].T + head.bias[0] for head in (network.heads, one.heads)]
    assert torch.corrcoef(torch.stack([logit.flatten() for logit in logits]))[0, 1] > 0.99


def test_a_class_of_which_a_resample_has_no_image_is_not_excluded() -> None:
    images = images_of([0] * 10 + [1] * 10 + [2], seed=0)
    train = [replace(image, cluster=f"lesion {image.name}") for image in images]
    classes = tuple(ClassName(name=str(name), description="-") for name in range(3))
    network = build_network(random_backbone(), AdapterSettings(adapters=8, rank=2, min_rank=1), 3)
    fit_heads(network, ImageParts("rare", classes, {"train": train}), CPU, bootstrap_seed=0)
    assert network.heads.bias[:, 2].min() > -10  # of 8 resamples, some lack the only image
    assert (network.heads.weight[:, 2] != 0).any(dim=-1).all()


@pytest.mark.parametrize("bootstrap_seed", [None, 0])
def test_a_single_class_is_refused(images: ImageParts, bootstrap_seed: int | None) -> None:
    parts = {"train": [image for image in images.parts["train"] if image.label == 1]}
    network = build_network(random_backbone(), AdapterSettings(rank=2, min_rank=1), 3)
    with pytest.raises(DataError, match="squares"):
        fit_heads(network, replace(images, parts=parts), CPU, bootstrap_seed)


def test_a_class_without_training_images_is_never_predicted(images: ImageParts) -> None:
    train = [image for image in images.parts["train"] if image.label != 1]
    network = build_network(random_backbone(), AdapterSettings(rank=2, min_rank=1), 3)
    fit_heads(network, ImageParts("two", images.classes, {"train": train}), CPU)
    predicted = head_log_probabilities(network, images.parts["validation"]).argmax(dim=-1)
    assert 1 not in predicted


def test_the_probabilities_of_the_heads_are_those_of_the_untrained_network(
    images: ImageParts,
) -> None:
    network = build_network(random_backbone(), AdapterSettings(rank=4, min_rank=2), 3)
    network.initialise(torch.Generator().manual_seed(0))
    fit_heads(network, images, CPU, bootstrap_seed=3)
    held_out = images.parts["validation"]
    pixels = torch.stack([resize(image.source, 32) for image in held_out])
    outputs = predict_images(network, pixels, [Draw(mode="det")] * len(held_out))
    expected = torch.cat([output.flat_log_probabilities.exp().mean(dim=1) for output in outputs])
    actual = head_log_probabilities(network, held_out).exp()
    torch.testing.assert_close(actual, expected.float(), atol=1e-4, rtol=1e-4)


def test_a_comparison_with_a_probe_is_paired_and_by_group() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (60,), generator=generator)
    shown = [LabelledImage(str(n), b"", int(y), f"g{n // 2}") for n, y in enumerate(labels)]
    probe = torch.randn(60, 3, generator=generator).double().log_softmax(dim=-1)
    better = (probe + 0.5 * torch.nn.functional.one_hot(labels, 3)).log_softmax(dim=-1)

    def comparison(model: torch.Tensor, count: int = 60):
        views = torch.zeros(count, 1, 1, dtype=torch.int64)
        trajectories = Trajectories.of(model[:count, None, None], views[..., None].float(), views)
        predictions = (Predictions.of(trajectories),)
        test = EvaluatedSet("test", "test", shown[:count], True, predictions)
        return compare_with_probe(test, probe[:count])

    found = comparison(better)
    assert (found.verdict, found.images, found.groups) == ("better", 60, 30)
    losses = [log_loss(labels, p.exp(), labels=range(3)) for p in (better, probe)]
    assert found.nll_difference.value == pytest.approx(losses[0] - losses[1], abs=1e-5)
    right = [float((p.argmax(dim=-1) == labels).float().mean()) for p in (better, probe)]
    assert found.accuracy == pytest.approx(right[1])
    assert found.accuracy_difference.value == pytest.approx(right[0] - right[1], abs=1e-6)
    noise = 0.1 * torch.randn(60, 3, generator=generator)
    assert comparison((probe + noise).log_softmax(dim=-1)).verdict == "no difference shown"
    few = comparison(better, 38)
    assert (few.nll_difference.low, few.verdict) == (None, "not tested")
    assert "fewer than 20 groups" in markdown(replace(REPORT, probe=few))


def test_features_and_validation_hold_one_batch_of_images(
    images: ImageParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.adaptation.probe._BATCH", 8)
    monkeypatch.setattr("training.adaptation.validation._BATCH", 8)
    network = build_network(random_backbone(), AdapterSettings(rank=4, min_rank=2), 3)
    waiting, most = 0, 0

    def read(pixels: torch.Tensor) -> torch.Tensor:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        return pixels

    def seen(_module: object, inputs: tuple[torch.Tensor, ...]) -> None:
        nonlocal waiting
        waiting -= len(inputs[0])

    network.backbone.conv_proj.register_forward_pre_hook(seen)
    parts = {
        part: [replace(image, source=partial(read, image.source)) for image in members]
        for part, members in images.parts.items()
    }
    streamed = replace(images, parts=parts)
    fit_heads(network, streamed, CPU)
    EpochValidation(network, parts["train"], epochs=1, samples=2).validate()
    assert (waiting, most) == (0, 8)


PIXELS = torch.randint(
    0, 256, (9, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
LABELS = [0, 1, 2, 0, 1, 2, 0, 1, 2]
IMAGES = [LabelledImage(str(n), p, y) for n, (p, y) in enumerate(zip(PIXELS, LABELS, strict=True))]


DET = [Draw(mode="det")] * len(IMAGES)


def probabilities_of(network: AdaptedVisionTransformer, draws: list[Draw] = DET) -> np.ndarray:
    outputs = predict_images(network, PIXELS / 255, draws)
    return np.concatenate([o.flat_log_probabilities.exp().mean(dim=1).numpy() for o in outputs])


def test_the_adapters_with_the_lowest_loss_are_restored() -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=4)
    losses, weights = [], []
    for scale in (3.0, 0.2, 2.0, 1.5):
        with torch.no_grad():
            network.heads.weight.mul_(scale)
        validation.validate()
        losses.append(log_loss(LABELS, probabilities_of(network)))
        weights.append(network.heads.weight.detach().clone())
        lowest = int(np.argmin(losses))
        assert validation.last["validation_nll"] == pytest.approx(losses[-1], rel=1e-4)
        assert validation.last["best_epoch"] == lowest + 1
    result = validation.result()
    assert result["validation_by_epoch"]["det"]["nll"] == pytest.approx(losses, rel=1e-4)
    assert result["best_epoch"] == lowest + 1
    assert result["validation_images"] == 9
    assert torch.equal(network.heads.weight, weights[lowest])
    assert lowest != 3


@pytest.mark.parametrize(
    ("losses", "best"),
    [((0.7, 0.5, 0.5), 2), ((0.5, 0.5), 1), ((math.nan, 0.5), 2), ((0.5, math.nan), 1)],
)
def test_the_reported_epoch_is_the_kept_one_also_of_equal_or_undefined_losses(
    losses: Sequence[float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=len(losses))
    for epoch, loss in enumerate(losses, start=1):
        metrics = dict.fromkeys(("nll", "accuracy", "ece", "brier"), np.array([loss]))
        monkeypatch.setattr(
            "training.adaptation.validation.classification_metrics", lambda *_, m=metrics: m
        )
        with torch.no_grad():
            network.heads.weight.fill_(epoch)
        validation.validate()
    assert validation.last["best_epoch"] == validation.result()["best_epoch"] == best
    assert (network.heads.weight == best).all()


def test_the_state_continues_in_another_process() -> None:
    first, network = random_network(), random_network(seed=1)
    best = EpochValidation(first, IMAGES, epochs=2)
    best.validate()
    resumed = EpochValidation(network, IMAGES, epochs=2)
    for name, tensor in resumed.tensors.items():
        tensor.copy_(best.tensors[name])
    with torch.no_grad():
        network.heads.weight.fill_(40.0)
        network.heads.bias.copy_(torch.tensor([-50.0, 0.0, 50.0]))
    resumed.validate()
    assert resumed.result()["best_epoch"] == 1
    assert torch.equal(network.heads.weight, first.heads.weight)


def test_the_metrics_of_both_modes_are_those_of_independent_libraries() -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=2, samples=3, keep_best=False)
    validation.validate()
    with torch.no_grad():
        network.heads.weight.mul_(2.0)
    validation.validate()
    result = validation.result()
    assert "best_epoch" not in result
    draws = [Draw(mode="stoch", samples=3, seed=seed) for seed in range(len(IMAGES))]
    for mode, mode_draws in (("det", DET), ("stoch", draws)):
        probabilities = probabilities_of(network, mode_draws)
        metrics = result["validation_by_epoch"][mode]
        assert metrics["nll"][1] == pytest.approx(log_loss(LABELS, probabilities), rel=1e-4)
        accuracy = accuracy_score(LABELS, probabilities.argmax(axis=1))
        assert metrics["accuracy"][1] == pytest.approx(accuracy)
        error = ((probabilities - np.eye(3)[LABELS]) ** 2).sum(axis=1).mean()
        assert metrics["brier"][1] == pytest.approx(error, rel=1e-4)
        assert metrics["nll"][0] != metrics["nll"][1]
    assert result["validation_by_epoch"]["det"] != result["validation_by_epoch"]["stoch"]


def test_an_objective_reports_the_best_epoch_so_far() -> None:
    network = random_network()
    validation = EpochValidation(network, IMAGES, epochs=3)
    settings = AdapterTraining(samples=1, best_epoch=True)
    objective = AdapterObjective(network, settings, torch.ones(3), validation=validation)
    objective.after_epoch()
    with torch.no_grad():
        network.heads.bias.copy_(torch.tensor([-50.0, 0.0, 50.0]))
    objective.after_epoch()
    assert objective.epoch_metrics()["best_epoch"] == 1
    assert len(validation.result()["validation_by_epoch"]["det"]["nll"]) == 2
