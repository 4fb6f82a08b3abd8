"""`site fit` writes a checkpoint and a policy that agree with naive computations, or nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint.files import (
    load_checkpoint,
    read_config,
    read_known_answer,
    stored_revision,
)
from eulerlora.model import EulerLoRA
from eulerlora_client.errors import CheckpointError, DataError
from eulerlora_client.policy.policy import default_policy_text, parse_policy
from tests.training.calibration.conftest import LESIONS
from training.calibration.policy import PolicyFile
from training.calibration.site import SiteReport, calibrate_site, split_images
from training.calibration.site_fit import SiteSettings
from training.calibration.thresholds import CoverageSettings
from training.data.images import LabelledImage
from training.data.local_images import LabelNames, LocalImages, read_local_images
from training.evaluation.inference import SamplingOptions
from training.evaluation.prediction_sets import Lesions

CPU = torch.device("cpu")
TEXT = default_policy_text().replace('["mel", "bcc", "akiec"]', '["mel"]')
POLICY = PolicyFile("own.toml", TEXT, parse_policy(TEXT, "own.toml"))
SETTINGS = SiteSettings(
    sensitivity=0.75,
    coverage=CoverageSettings((0.9, 0.95)),
    options=SamplingOptions("stoch", 4),
    policy=POLICY,
)


@pytest.fixture(scope="module")
def local(local_folder: Path) -> LocalImages:
    return read_local_images(local_folder, LabelNames(("bkl", "mel", "nv"), {"nevus": "nv"}))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site") / "fitted"


@pytest.fixture(scope="module")
def report(site_source: Path, local: LocalImages, out: Path) -> SiteReport:
    return calibrate_site(site_source, local, out, SETTINGS, CPU)


def test_the_written_checkpoint_is_that_of_the_report_and_the_source_keeps_its_files(
    report: SiteReport, out: Path, site_source: Path
) -> None:
    checkpoint = load_checkpoint(out)
    assert checkpoint.revision == report.revision
    assert checkpoint.feature_distance is not None
    read_known_answer(out, checkpoint.config)
    assert all(part.result for part in report.parts if part.met)
    card = (out / "README.md").read_text()
    assert card.index("20 of `mel`") < card.index("## Classes")
    assert "site" not in read_config(site_source).provenance
    assert stored_revision(site_source) != report.revision
    for name in ("adapters.safetensors", "backbone.safetensors", "known_answer.png"):
        assert (out / name).read_bytes() == (site_source / name).read_bytes()


def test_thresholds_keep_their_share_of_the_site_s_images(
    report: SiteReport, out: Path, local: LocalImages
) -> None:
    config = read_config(out)
    assert [threshold.samples for threshold in config.thresholds] == [1, 1, 2, 4, 8, 16]
    for threshold in config.thresholds:
        assert threshold.images == len(local.images)
        assert threshold.data == "clinic, site pictures"
        assert threshold.energy is not None
        assert threshold.feature_distance is not None
        assert min(threshold.kept, threshold.energy.kept, threshold.feature_distance.kept) >= 0.95


def test_predictions_of_the_new_checkpoint_are_kept_as_calibrated(
    report: SiteReport, out: Path, local: LocalImages, local_folder: Path
) -> None:
    model = EulerLoRA.load(out, "cpu")
    predicted = model.predict([local_folder / image.name for image in local.images])
    assert model.config.temperature != 1  # the labels are random
    threshold = model.config.threshold("det", 1)
    assert threshold is not None
    msp = predicted.ood_scores["msp"].value
    assert float((msp >= threshold.msp).double().mean()) == pytest.approx(threshold.kept)


def test_prediction_sets_are_fitted_where_every_class_has_enough_lesions(
    report: SiteReport, out: Path
) -> None:
    sets = read_config(out).prediction_sets
    assert {entry.coverage for entry in sets} == {0.9}
    assert {entry.units for entry in sets} == {tuple(LESIONS.values())}
    assert {entry.unit for entry in sets} == {"lesion"}
    assert "| temperature | 10 lesions of each class | 12 |" in report.tables
    assert "| prediction sets 0.9 | 9 lesions of each class | 12 | fitted |" in report.tables
    assert "| prediction sets 0.95 | 19 lesions of each class | 12 | too few |" in report.tables


def test_a_second_fit_gives_the_same_revision(
    report: SiteReport, site_source: Path, local: LocalImages, tmp_path: Path
) -> None:
    again = calibrate_site(site_source, local, tmp_path / "again", SETTINGS, CPU)
    assert again.revision == report.revision


def test_a_fit_of_a_fitted_checkpoint_has_one_section_in_its_card(
    report: SiteReport, out: Path, local: LocalImages, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, hold_out=0.5)
    second = calibrate_site(out, local, tmp_path / "second", settings, CPU)
    assert (tmp_path / "second" / "README.md").read_text().count("## Site calibration") == 1
    assert read_config(tmp_path / "second").provenance["site"]["source"] == report.revision
    policy = parse_policy((tmp_path / "second" / "policy.toml").read_text(), "policy.toml")
    assert policy.evidence is not None
    (measured,) = policy.evidence.measured
    assert measured.data == "clinic, held-out site pictures"
    assert policy.evidence.fit.lesions == measured.target.lesions == 10
    assert second.fitted + second.measured == len(local.images)
    assert second.after is not None
    assert "| kept by feature_distance |" in second.tables


def test_without_melanoma_there_is_no_policy(
    site_source: Path, local: LocalImages, tmp_path: Path
) -> None:
    others = replace(local, images=[image for image in local.images if image.label != 1])
    report = calibrate_site(site_source, others, tmp_path / "out", SETTINGS, CPU)
    assert report.policy is None
    assert not (tmp_path / "out" / "policy.toml").exists()
    assert "| urgent threshold | 1 lesions of melanoma | 0 | too few |" in report.tables


def test_parts_with_too_few_lesions_stay_as_they_were(
    site_source: Path, local: LocalImages, tmp_path: Path
) -> None:
    few = replace(local, images=[image for image in local.images if image.label == 1][:3])
    report = calibrate_site(site_source, few, tmp_path / "out", SETTINGS, CPU)
    before, after = read_config(site_source), read_config(tmp_path / "out")
    assert (after.thresholds, after.features) == (before.thresholds, before.features)
    assert after.temperature == 1
    assert "11 lesions of melanoma without a miss | 2 | not established; too few |" in report.tables
    assert "2 of 2 found, lower bound 0.224" in report.tables


def test_a_failed_fit_writes_nothing(site_source: Path, local: LocalImages, tmp_path: Path) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / "notes").touch()
    with pytest.raises(CheckpointError, match="used"):
        calibrate_site(site_source, local, folder, SETTINGS, CPU)
    other = replace(SETTINGS, policy=PolicyFile.read(None))
    with pytest.raises(DataError, match="bcc, akiec"):
        calibrate_site(site_source, local, tmp_path / "other", other, CPU)
    nevus = [image for image in local.images if image.label == 2][:5]
    with pytest.raises(DataError, match="got 4 and 0"):
        calibrate_site(site_source, replace(local, images=nevus), tmp_path / "few", SETTINGS, CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


def test_no_lesion_is_fitted_and_measured_and_none_is_lost() -> None:
    images = [
        LabelledImage(f"{label}-{lesion}-{picture}", Path(), label, f"{label}-{lesion}")
        for label, lesions, pictures in ((0, 20, 2), (1, 10, 1), (2, 1, 2))
        for lesion in range(lesions)
        for picture in range(pictures)
    ]
    parts = split_images(images, 0.5)
    assert split_images(images[::-1], 0.5) == parts
    assert sorted(image.name for part in parts for image in part) == sorted(i.name for i in images)
    fit, measure = ({image.cluster for image in part} for part in parts)
    assert not fit & measure
    assert [Lesions.of(part).counts(classes=3) for part in parts] == [(10, 5, 1), (10, 5, 0)]
    assert split_images(images, None) == (images, ())
    with pytest.raises(DataError):
        split_images(images[-2:], 0.5)
