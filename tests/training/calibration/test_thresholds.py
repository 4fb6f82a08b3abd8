"""OOD thresholds keep the stated share of held-out images."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eulerlora import EulerLoRA
from eulerlora.answer import Predictions
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import (
    load_checkpoint,
    predict_known_answer,
    read_config,
    read_known_answer,
    revision_of,
)
from eulerlora.sampling.adaptive import StoppingRule
from eulerlora.scores.trajectories import Trajectories
from eulerlora_contract.checkpoints import Threshold
from eulerlora_contract.errors import CheckpointError, OutputPathError
from tests.conftest import DET, STOCH, config_of, random_network
from tests.damaged_checkpoints import DAMAGES
from tests.training.conftest import list_images
from training.calibration.calibrate import calibrate_checkpoint
from training.calibration.thresholds import (
    CalibrationOutputs,
    CoverageSettings,
    fit_temperature,
    precision_changes,
    with_thresholds,
)
from training.data.images import ImageParts, LabelledImage

UNSCALED = {"det": 1.0, "stoch": 1.0}


@pytest.fixture
def paths(image_folder: Path) -> list[Path]:
    return [image_folder / "test" / name for name in list_images(image_folder / "test")]


@pytest.fixture
def images(image_folder: Path) -> list[LabelledImage]:
    sources = list_images(image_folder / "test")
    return [LabelledImage(name, source, 0) for name, source in sources.items()]


def thresholds_of(
    model: EulerLoRA,
    images: Sequence[LabelledImage],
    samples: Sequence[int | str],
) -> tuple[Threshold, ...]:
    outputs = CalibrationOutputs.of(model, images, "squares", samples)
    return with_thresholds(uncalibrated(model.config), outputs, None, samples).thresholds


def uncalibrated(config: CheckpointConfig) -> CheckpointConfig:
    return config.model_copy(update={"thresholds": (), "margins": None})


def lesion_images(count: int, pictures: int) -> list[LabelledImage]:
    names = [(lesion, picture) for lesion in range(count) for picture in range(pictures)]
    return [
        LabelledImage(f"{a}-{b}", b"", 0, lesion=f"{a}" if pictures > 1 else None) for a, b in names
    ]


def test_thresholds_agree_with_predictions_for_every_number_of_samples(
    checkpoint_folder: Path, images: list[LabelledImage], paths: list[Path]
) -> None:
    model = EulerLoRA(load_checkpoint(checkpoint_folder), torch.device("cpu"))
    thresholds = thresholds_of(model, images, (2, 4, 8, "auto"))
    assert [(threshold.options.mode, threshold.options.samples) for threshold in thresholds] == [
        ("det", 1), ("stoch", 2), ("stoch", 4), ("stoch", 8)
    ]  # fmt: skip
    # Fewer than 59 images: the lowest score.
    det = model.predict(paths, "det").msp
    assert thresholds[0].msp == pytest.approx(float(det.min()), abs=1e-6)
    stoch = model.predict(paths, "stoch", 8).msp
    assert thresholds[-1].msp == pytest.approx(float(stoch.min()), abs=1e-6)
    for threshold in thresholds:
        assert threshold.kept == 1
        assert (threshold.tolerance.units, threshold.tolerance.unit) == (len(paths), "picture")
        assert threshold.tolerance.confidence == pytest.approx(1 - 0.95 ** len(paths))
        assert threshold.images == len(paths)
        assert threshold.data == "squares"


def test_auto_keeps_the_boundaries_and_is_measured_at_each_image_s_last_round() -> None:
    """The images end at different rounds, by the rule of the number that is compared with."""
    generator = torch.Generator().manual_seed(2)
    logits = 4 * torch.randn(120, 1, 1, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(120, 2, 4, 3, generator=generator, dtype=torch.float64)
    outputs = CalibrationOutputs(
        outputs_of(logits.expand(-1, 2, -1, -1)),
        outputs_of(logits + noise / 4),
        "float32",
        lesion_images(120, 1),
        "squares",
    )
    config = with_thresholds(config_of(random_network()), outputs, None, (2, "auto"))
    margins, (*fixed, auto) = config.margins, config.thresholds
    assert margins is not None
    assert auto.options == replace(STOCH, samples="auto")
    assert [entry.options.samples for entry in fixed] == [1, 2, 4]
    rule = StoppingRule(fixed[-1].msp, margins=margins)
    rounds = {samples: Predictions.of(outputs.stoch.first(samples)) for samples in (1, 2, 4)}
    scores, ends = [], set()
    for index in range(120):
        ending = [number for number in rounds if rule.ends(rounds[number], number)[index]]
        end = min(ending, default=4)
        scores.append(float(rounds[end].msp[index]))
        ends.add(end)
    assert len(ends) > 1
    assert auto.msp == fixed[-1].msp
    assert auto.kept == np.mean(np.array(scores) >= auto.msp)
    assert fixed[-1].energy is not None
    assert auto.energy.threshold == fixed[-1].energy.threshold
    assert auto.energy.upper_quartile != fixed[-1].energy.upper_quartile


def test_a_lesion_counts_once_by_its_image_that_is_most_out_of_distribution() -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = outputs_of(4 * torch.randn(180, 1, 1, 3, generator=generator, dtype=torch.float64))
    calibration = CalibrationOutputs(outputs, outputs, "float32", lesion_images(90, 2), "pairs")
    (threshold,) = with_thresholds(config_of(random_network()), calibration, None, []).thresholds
    of_lesions = Predictions.of(outputs).msp.view(90, 2).amin(dim=1).numpy()
    assert threshold.msp == np.sort(of_lesions)[0]  # 90 lesions allow no miss, 93 one
    assert (threshold.tolerance.units, threshold.tolerance.unit) == (90, "lesion")


def outputs_of(logits: Tensor) -> Trajectories:
    shape = logits.shape[:-1]
    return Trajectories.of(logits, torch.zeros(*shape, 1), torch.zeros(shape, dtype=torch.int64))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_calibration_writes_a_new_checkpoint_and_changes_no_other(
    checkpoint_folder: Path, images: list[LabelledImage], tmp_path: Path
) -> None:
    parts, cpu = ImageParts("squares", (), {"train": images, "test": images}), torch.device("cpu")
    source = Path(shutil.copytree(checkpoint_folder, tmp_path / "source"))
    (source / "LICENSE").write_text("terms\n")
    before, states = contents(source), {path: path.stat() for path in source.iterdir()}
    out = tmp_path / "new"
    config = calibrate_checkpoint(source, out, parts, cpu, samples=[2])
    assert contents(source) == before
    assert {path: path.stat() for path in source.iterdir()} == states
    stored = load_checkpoint(out)
    assert stored.revision == revision_of(config) != load_checkpoint(source).revision
    kept = {"README.md", "LICENSE", "adapters.safetensors", "backbone.safetensors"}
    assert {name: contents(out)[name] for name in kept} == {name: before[name] for name in kept}
    known = read_known_answer(out, config)
    outputs = predict_known_answer(stored.network, known.pixels, known.draws, config.temperatures)
    assert known.fault(outputs, "float32") is None


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("source", OutputPathError),
        ("source/new", OutputPathError),
        ("link/new", OutputPathError),
        ("used", CheckpointError),
    ],
)
def test_a_checkpoint_is_not_written_into_the_calibrated_one_or_a_used_folder(
    checkpoint_folder: Path, tmp_path: Path, name: str, error: type[Exception]
) -> None:
    source = Path(shutil.copytree(checkpoint_folder, tmp_path / "source"))
    (tmp_path / "link").symlink_to("source")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes").touch()
    before = contents(source)
    with pytest.raises(error):
        calibrate_checkpoint(
            source, tmp_path / name, ImageParts("none", (), {}), torch.device("cpu")
        )
    assert contents(source) == before


def test_weights_that_change_while_a_checkpoint_is_calibrated_are_refused(
    checkpoint_folder: Path, images: list[LabelledImage], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(checkpoint_folder, tmp_path / "source"))

    def damaging() -> Tensor:
        DAMAGES["other adapters"].apply(source)
        return images[0].pixels()

    shown = [replace(images[0], source=damaging), *images[1:]]
    parts = ImageParts("squares", (), {"train": images, "test": shown})
    with pytest.raises(CheckpointError, match=r"adapters\.safetensors"):
        calibrate_checkpoint(
            source, tmp_path / "new", parts, torch.device("cpu"), samples=[2], temperature=False
        )
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_calibration_keeps_the_sampler_unless_another_is_given(
    checkpoint_folder: Path, images: list[LabelledImage], tmp_path: Path
) -> None:
    parts = ImageParts("squares", (), {"train": images, "test": images})
    cpu = torch.device("cpu")
    balanced, again, other = (tmp_path / name for name in ("balanced", "again", "other"))
    options: dict[str, Any] = {"images": parts, "device": cpu, "samples": [2]}
    first = calibrate_checkpoint(checkpoint_folder, balanced, sampler="balanced", **options)
    assert first.sampler == "balanced"
    assert read_config(balanced) == first
    calibrate_checkpoint(balanced, again, **options)
    assert contents(again) == contents(balanced)
    calibrate_checkpoint(balanced, other, sampler="independent", **options)
    assert read_config(other).sampler == "independent"


@pytest.mark.parametrize("views", [1, 8])
def test_a_calibration_fits_the_temperatures_before_the_thresholds(
    checkpoint_folder: Path,
    images: list[LabelledImage],
    paths: list[Path],
    views: int,
    tmp_path: Path,
) -> None:
    labels = torch.arange(len(images)) % 3
    shown = [replace(i, label=int(y)) for i, y in zip(images, labels, strict=True)]
    parts, cpu = (
        ImageParts("squares", (), {"train": shown, "calibration": shown}),
        torch.device("cpu"),
    )
    new, options = tmp_path / "new", {"samples": [2, 4], "sampler": "balanced", "views": views}
    config = calibrate_checkpoint(checkpoint_folder, new, parts, cpu, **options)
    assert config.views == views
    model = EulerLoRA.load(new, "cpu")
    unscaled = replace(
        load_checkpoint(new),
        config=config.model_copy(update={"temperature": 1.0, "stoch_temperature": None}),
    )
    for mode in UNSCALED:
        assert config.temperatures[mode] > 1.3  # the labels are random
        scaled, plain = (
            one.predict(paths, mode).probabilities.gather(1, labels[:, None]).log().mean()
            for one in (model, EulerLoRA(unscaled, cpu))
        )
        assert scaled > plain
    for samples in (2, 4):
        threshold = config.threshold(config.options("stoch", samples))
        msp = model.predict(paths, "stoch", samples).msp
        assert threshold.msp == pytest.approx(float(msp.min()), abs=1e-6)
    known = read_known_answer(new, config)
    outputs = predict_known_answer(model.network, known.pixels, known.draws, config.temperatures)
    assert known.fault(outputs, "float32") is None
    again = calibrate_checkpoint(
        new, tmp_path / "again", parts, cpu, samples=[2, 4], temperature=False
    )
    assert again.temperatures == UNSCALED


@pytest.mark.parametrize(
    ("part", "rare"), [("test", 6), ("calibration", 4)], ids=["test part", "few lesions"]
)
def test_no_temperature_is_fitted_to_a_test_part_or_to_few_lesions_of_a_class(
    checkpoint_folder: Path, images: list[LabelledImage], tmp_path: Path, part: str, rare: int
) -> None:
    labels = [2] * rare + [index % 2 for index in range(len(images) - rare)]
    shown = [replace(i, label=label) for i, label in zip(images, labels, strict=True)]
    parts = ImageParts("squares", (), {"train": shown, part: shown})
    cpu = torch.device("cpu")
    fitted = calibrate_checkpoint(checkpoint_folder, tmp_path / "new", parts, cpu, samples=[2])
    assert fitted.temperatures == UNSCALED


def test_pictures_of_a_patient_stay_together_in_the_fit_of_a_temperature(
    checkpoint_folder: Path, images: list[LabelledImage]
) -> None:
    patients = np.arange(len(images)) // 3 % 7
    labels = torch.arange(len(images)) % 3
    shown = [
        replace(image, label=int(label), cluster=f"patient {patient}")
        for image, label, patient in zip(images, labels, patients, strict=True)
    ]
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    outputs = CalibrationOutputs.of(model, shown, "squares", [2])
    logits = outputs.det.flat_log_probabilities
    units = outputs.units
    assert (units.unit, len(set(units.image_groups.tolist()))) == ("group", 6)
    assert outputs.temperature(DET) == fit_temperature(logits, labels, units)
    apart = replace(units, groups=np.arange(len(units)))
    parted = fit_temperature(logits, labels, apart)
    assert outputs.temperature(DET).standard_error != parted.standard_error


def test_a_calibration_stores_all_that_it_fitted_and_all_of_it_is_in_the_revision(
    checkpoint_folder: Path, images: list[LabelledImage], tmp_path: Path
) -> None:
    many = [replace(image, name=f"{n}") for n in range(9) for image in images][
        :100
    ]  # without which there are no margins
    parts, cpu = ImageParts("squares", (), {"train": many, "test": many}), torch.device("cpu")
    fitted = calibrate_checkpoint(
        checkpoint_folder, tmp_path / "new", parts, cpu, samples=[2, "auto"], precision="bfloat16"
    )
    assert fitted.margins is not None
    assert len(fitted.bfloat16) == 2
    assert [entry.options.samples for entry in fitted.thresholds].count("auto") == 2
    stored = load_checkpoint(tmp_path / "new")
    assert (stored.config, stored.revision) == (fitted, revision_of(fitted))


def test_the_record_of_bfloat16_counts_images_that_change() -> None:
    exact = torch.tensor([[0.60, 0.40], [0.51, 0.49], [0.80, 0.20]]).double()
    moved = torch.tensor([[0.609, 0.391], [0.495, 0.505], [0.70, 0.30]]).double()

    def outputs(probabilities: Tensor, precision: str) -> CalibrationOutputs:
        of_rows = outputs_of(probabilities.log()[:, None, None])
        return CalibrationOutputs(of_rows, of_rows, precision, lesion_images(3, 1), "squares")

    threshold = Threshold(options=DET, msp=0.75, kept=1, images=3, data="squares")
    config = config_of(random_network(), thresholds=(threshold,))
    det, stoch = precision_changes(
        config, outputs(exact, "float32"), outputs(moved, "bfloat16"), None
    )
    assert (det.images, det.probabilities, det.labels, det.flags) == (3, 2, 1, 1)
    assert (stoch.options.samples, stoch.probabilities, stoch.labels, stoch.flags) == (1, 2, 1, 0)


def test_a_calibration_in_both_precisions_has_entries_of_each(
    checkpoint_folder: Path, images: list[LabelledImage], tmp_path: Path
) -> None:
    parts = ImageParts("squares", (), {"train": images, "test": images})
    cpu, coverage = torch.device("cpu"), CoverageSettings((0.5,), always_include_rare=True)
    options: dict[str, Any] = {"samples": [2], "coverage": coverage}
    both = calibrate_checkpoint(
        checkpoint_folder, tmp_path / "new", parts, cpu, precision="bfloat16", **options
    )
    compared = [DET, replace(STOCH, samples=2)]
    assert [change.options.in_precision("float32") for change in both.bfloat16] == compared
    assert read_config(tmp_path / "new") == both
    model = EulerLoRA.load(tmp_path / "new", "cpu", "bfloat16")
    assert {entry.options.precision for entry in model.config.thresholds} == {"bfloat16"}
    assert {entry.options.precision for entry in model.config.prediction_sets} == {"bfloat16"}
    alone = calibrate_checkpoint(tmp_path / "new", tmp_path / "alone", parts, cpu, **options)
    assert alone.bfloat16 == ()
    assert both.in_precision("float32").thresholds == alone.thresholds
    assert both.in_precision("float32").prediction_sets == alone.prediction_sets
    assert both.features == alone.features
    rounded = both.in_precision("bfloat16").thresholds
    for entry, exact in zip(rounded, alone.thresholds, strict=True):
        assert entry.options == exact.options.in_precision("bfloat16")
    assert [entry.msp for entry in rounded] != [entry.msp for entry in alone.thresholds]
