"""Prediction sets fitted on calibration lesions, and their coverage of labelled images."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from eulerlora import EulerLoRA
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, read_config
from eulerlora.scores.prediction_sets import PredictionSetCalibration
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.errors import DataError
from tests.conftest import DET, config_of, random_network
from tests.training.conftest import list_images
from training.calibration.calibrate import calibrate_checkpoint
from training.calibration.parts import calibrated_parts
from training.calibration.thresholds import (
    CalibrationOutputs,
    CoverageSettings,
    with_prediction_sets,
)
from training.data.datasets import checkpoint_dataset
from training.data.images import ImageParts, LabelledImage
from training.evaluation.prediction_sets import set_coverages

CLASSES = ("bkl", "mel", "nv")
CPU = torch.device("cpu")


def lesion_images(lesions: int, seed: int) -> list[LabelledImage]:
    """One to three images of each of `lesions` lesions, a third of them of each class."""
    random = np.random.default_rng(seed)
    return [
        LabelledImage(
            f"{lesion}-{index}", torch.empty(0), lesion % 3, f"patient {lesion}", lesion=f"{lesion}"
        )
        for lesion in range(lesions)
        for index in range(random.integers(1, 4))
    ]


def predicted(images: Sequence[LabelledImage], seed: int) -> Tensor:
    """Probabilities (n, 3) float64 that are informative about the labels."""
    logits = torch.randn(len(images), 3, generator=Generator().manual_seed(seed)).double()
    labels = torch.tensor([image.label for image in images])
    logits[torch.arange(len(images)), labels] += 1.0
    return logits.softmax(dim=1)


def fitted(
    images: Sequence[LabelledImage],
    probabilities: Tensor,
    settings: CoverageSettings,
    config: CheckpointConfig | None = None,
) -> tuple[PredictionSetCalibration, ...]:
    empty = torch.zeros(len(images), 1, 1)
    logits = probabilities.log()[:, None, None]
    outputs = Trajectories.of(logits, empty[..., None], empty.long())
    config = config or config_of(random_network())
    calibration = CalibrationOutputs(outputs, outputs, "float32", images, "squares")
    return with_prediction_sets(config, calibration, [], settings).prediction_sets


def test_thresholds_are_tolerance_bounds_of_the_largest_score_of_each_lesion() -> None:
    images = lesion_images(90, seed=0)
    probabilities = predicted(images, seed=1)
    (calibration,) = fitted(images, probabilities, CoverageSettings((0.8,)))
    for confidence in calibration.confidences:  # 28 of 30: one more miss would be 0.88
        assert confidence == pytest.approx(1 - stats.binom.cdf(2, 30, 0.2))
    for label, threshold in enumerate(calibration.thresholds):
        worst: dict[str, float] = {}
        for image, row in zip(images, probabilities.tolist(), strict=True):
            if image.label == label:
                assert image.cluster is not None
                worst[image.cluster] = max(worst.get(image.cluster, 0), 1 - row[label])
        ranked = sorted(worst.values())
        assert len(ranked) == 30
        assert threshold == pytest.approx(ranked[-3], abs=1e-12)
    assert (calibration.unit, calibration.units) == ("lesion", (30, 30, 30))
    assert (calibration.data, calibration.options.precision) == ("squares", "float32")


@pytest.mark.parametrize(
    ("lesions", "always", "named"),
    [
        (26, False, "8 of nv"),
        (27, False, None),
        (26, True, None),
        (12, True, "4 of bkl, 4 of mel, 4 of nv"),
    ],
)
def test_classes_with_too_few_lesions_are_refused_by_name_and_number(
    lesions: int, always: bool, named: str | None
) -> None:
    images, settings = lesion_images(lesions, seed=0), CoverageSettings((0.5, 0.9), always)
    probabilities = predicted(images, seed=1)
    assert fitted(images, probabilities, CoverageSettings()) == ()
    if named is None:
        assert len(fitted(images, probabilities, settings)) == 2
        return
    with pytest.raises(DataError, match=named):
        fitted(images, probabilities, settings)


def test_a_rare_class_is_in_every_set_on_request() -> None:
    images = lesion_images(26, seed=0)
    settings = CoverageSettings((0.9,), always_include_rare=True)
    (calibration,) = fitted(images, predicted(images, 1), settings)
    assert calibration.thresholds[2] == 1
    assert max(calibration.thresholds[:2]) < 1
    assert calibration.units == (9, 9, 8)
    of_all = 1 - 0.9**9  # no miss is allowed
    assert calibration.confidences == pytest.approx((of_all, of_all, 1))
    (part,) = calibrated_parts(config_of(random_network(), prediction_sets=(calibration,)))
    assert (part.needed, part.available, part.unit) == (9, 9, "lesions of a class")


def test_the_digest_depends_on_names_labels_and_lesions_but_not_on_their_order() -> None:
    images = lesion_images(9, seed=0)

    def digest_of(shown: Sequence[LabelledImage]) -> str:
        settings = CoverageSettings((0.5,), always_include_rare=True)
        (calibration,) = fitted(shown, predicted(shown, seed=1), settings)
        return calibration.data_sha256

    digest = digest_of(images)
    assert digest_of(images[::-1]) == digest
    assert digest_of(images[1:]) != digest
    for change in ({"name": "x"}, {"label": 1}, {"cluster": "y"}, {"lesion": "z"}):
        assert digest_of([replace(images[0], **change), *images[1:]]) != digest


def test_a_lesion_is_covered_if_all_of_its_images_are() -> None:
    images = [
        LabelledImage(name, torch.empty(0), label, lesion)
        for name, label, lesion in (
            ("a", 0, "x"), ("b", 0, "x"), ("c", 0, "y"), ("d", 1, "z"), ("e", 1, "w"),
        )
    ]  # fmt: skip
    probabilities = torch.tensor(
        [[0.9, 0.1, 0], [0.1, 0.9, 0], [0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0, 0.2, 0.8]]
    ).double()
    calibration = PredictionSetCalibration(
        coverage=0.9, options=DET, thresholds=(0.5, 0.6, 1.0), unit="lesion", units=(9, 9, 1),
        confidences=(0.6, 0.6, 1.0), data="squares",
        data_sha256="0" * 64,
    )  # fmt: skip
    (result,) = set_coverages(probabilities, images, CLASSES, [calibration])
    assert list(result.classes) == ["bkl", "mel"]
    bkl, mel = result.classes["bkl"].units, result.classes["mel"].units
    assert (bkl.hits, bkl.clusters, mel.hits, mel.clusters) == (1, 2, 1, 2)
    exact = stats.binomtest(1, 2).proportion_ci(method="exact")
    assert (bkl.low, bkl.high) == pytest.approx((exact.low, exact.high))
    assert result.classes["bkl"].mean_size == 2  # {bkl, nv}, {mel, nv} and {bkl, nv}
    assert result.mean_size == pytest.approx(9 / 5)
    assert result.always_included == ("nv",)


def test_sets_of_most_calibrations_cover_new_lesions_of_every_class() -> None:
    """The true coverage is measured on many new lesions of each of 60 calibrations."""
    shares = []
    for trial in range(60):
        images = lesion_images(1200, seed=trial)
        probabilities = predicted(images, seed=1000 + trial)
        start = sum(int(image.name.split("-")[0]) < 90 for image in images)
        (calibration,) = fitted(images[:start], probabilities[:start], CoverageSettings((0.8,)))
        new = probabilities[start:], images[start:]
        (result,) = set_coverages(*new, CLASSES, [calibration])
        covered = [result.classes[name].units for name in CLASSES]
        shares += [share.hits / share.images for share in covered]
    law = stats.betabinom(370, 28, 3)  # rank 28 of 30 calibration lesions, 370 new ones
    width = 4 * law.std() / math.sqrt(len(shares))
    assert np.mean(shares) == pytest.approx(law.mean() / 370, abs=width / 370)
    reached = np.mean(np.array(shares) >= 0.8)
    expected = 1 - law.cdf(0.8 * 370 - 1)
    assert reached == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 180))


@pytest.fixture
def parts(image_folder: Path) -> ImageParts:
    """Images in two parts, with a lesion for every two images of a class."""
    named: dict[str, list[LabelledImage]] = {"train": [], "calibration": []}
    for part, folder in (("train", "train"), ("calibration", "test")):
        for index, (name, source) in enumerate(list_images(image_folder / folder).items()):
            label = ("blue", "green", "red").index(name.split("/")[0])
            named[part].append(LabelledImage(name, source, label, f"{name[:4]} {index // 2}"))
    return ImageParts("squares", (), named)


def test_calibrate_stores_sets_that_cover_its_images(
    checkpoint_folder: Path, parts: ImageParts, tmp_path: Path
) -> None:
    new, options = tmp_path / "new", {"samples": [2, "auto"], "coverage": CoverageSettings((0.5,))}
    config = calibrate_checkpoint(checkpoint_folder, new, parts, CPU, **options)
    assert read_config(new) == config
    assert [(entry.options.mode, entry.options.samples) for entry in config.prediction_sets] == [
        ("det", 1), ("stoch", 2), ("stoch", 4),
    ]  # fmt: skip
    model = EulerLoRA.load(new, "cpu")
    images = parts.parts["calibration"]
    for mode, samples in (("det", None), ("stoch", 2)):
        prediction = model.predict([image.source for image in images], mode, samples, coverage=0.5)
        sets = prediction.prediction_sets
        assert (sets.unit, sets.calibrated_on) == ("group", "squares, calibration part")
        covered = sum(
            model.classes[image.label] in names
            for image, names in zip(images, sets.labels, strict=True)
        )
        assert covered / len(images) >= 0.5
    assert model.predict([images[0].source], "stoch", 3, coverage=0.5).prediction_sets is None


def test_a_calibration_without_coverage_removes_earlier_sets(
    checkpoint_folder: Path, parts: ImageParts, tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    coverage = CoverageSettings((0.5,))
    options: dict[str, Any] = {"images": parts, "device": CPU, "samples": [2]}
    with_sets = calibrate_checkpoint(checkpoint_folder, first, coverage=coverage, **options)
    assert with_sets.prediction_sets
    assert calibrate_checkpoint(first, again, **options).prediction_sets == ()


def test_a_refused_calibration_writes_nothing(
    checkpoint_folder: Path, parts: ImageParts, tmp_path: Path
) -> None:
    coverage = CoverageSettings((0.99,))
    with pytest.raises(DataError):
        calibrate_checkpoint(checkpoint_folder, tmp_path / "new", parts, CPU, coverage=coverage)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def ham10000(ham10000_table: Path) -> Sequence[LabelledImage]:
    """The calibration part of HAM10000 without its pixels."""
    images = checkpoint_dataset(read_config(DEFAULT_CHECKPOINT), ham10000_table)
    return images.parts["calibration"]


@pytest.mark.data
def test_the_packaged_sets_state_their_calibration_lesions(ham10000) -> None:
    config = read_config(DEFAULT_CHECKPOINT)
    equal = torch.full((len(ham10000), len(config.classes)), 1 / len(config.classes)).double()
    plain = config.model_copy(update={"prediction_sets": ()})
    (again,) = fitted(ham10000, equal, CoverageSettings((0.9,), True), plain)[:1]
    assert {entry.coverage for entry in config.prediction_sets} == {0.9, 0.95}
    for entry in config.prediction_sets:
        assert (entry.units, entry.data_sha256) == (again.units, again.data_sha256)
