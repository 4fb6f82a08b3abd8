"""`site fit` writes a checkpoint and a policy that agree with naive computations, or nothing.

A temperature is the most probable one, and is used only if it helps other lesions.

Moved means follow a change of all features, and only if that lowers the threshold.

`eulerlora site fit` on the command line: its output, its files and its errors.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F

from eulerlora import EulerLoRA
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import (
    load_checkpoint,
    read_config,
    read_known_answer,
    stored_revision,
)
from eulerlora.scores.ood_scores import FeatureDistance, fit_feature_statistics
from eulerlora_clinic.fitting.feature_means import fit_offset
from eulerlora_clinic.policy.policy import read_policy
from tests.checkpoint_files import write_config
from tests.conftest import DET, MARGINS
from tests.program import run, succeed
from tests.training.conftest import units_of, write_training_images
from training.calibration.thresholds import fit_temperature, image_nll
from training.data.copies import image_digests
from training.data.images import LabelledImage
from training.reporting.model_card import model_card

NEVUS = ("--class", "nevus=nv")
LOOSE = ("--sensitivity", "0.75", "--coverage", "0.9,0.95")
"""What the few lesions of `local_folder` can show."""


def fit(*arguments: object) -> tuple[int, str]:
    """Returns the exit status of `site fit` and what it prints."""
    done = run("site", "fit", *map(str, arguments), "--device", "cpu")
    return done.status, done.out + done.err


def fitted(*arguments: object) -> str:
    """Returns what a `site fit` that succeeds prints."""
    status, output = fit(*arguments, *LOOSE)
    assert status == 0, output
    return output


def tables(output: str) -> list[list[str]]:
    """The cells of all tables."""
    rows = (line for line in output.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def new_card(config: CheckpointConfig) -> str:
    """The model card of a checkpoint without results of a training."""
    facts = config.provenance | {"imported": {"format": "adapt"}}
    return model_card(config.model_copy(update={"provenance": facts}), None)


def rows_of(folder: Path, *labels: str) -> list[str]:
    """The rows of `labels.csv` with these labels."""
    rows = (folder / "labels.csv").read_text().splitlines()[1:]
    return [row for row in rows if row.split(",")[1] in labels]


def pictures(source: Path, folder: Path, rows: Sequence[str], names: str = "{name}") -> Path:
    """Writes the pictures of rows of `labels.csv` to a new folder, with such rows.

    `names` are those of the new files, by the number and the name of the picture.
    """
    folder.mkdir(parents=True)
    written = ["path,label,lesion"]
    for number, row in enumerate(rows):
        name, _, labels = row.partition(",")
        new = names.format(number=number, name=name)
        shutil.copy(source / name, folder / new)
        written.append(f"{new},{labels}")
    (folder / "labels.csv").write_text("\n".join(written))
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site") / "fitted"


@pytest.fixture(scope="module")
def output(site_source: Path, local_folder: Path, site_policy: Path, out: Path) -> str:
    """What the fit prints that writes `out`."""
    return fitted(
        site_source, "--data", local_folder, *NEVUS, "--out", out, "--policy", site_policy
    )


def test_the_written_checkpoint_is_that_of_the_report_and_the_source_keeps_its_files(
    output: str, out: Path, site_source: Path
) -> None:
    checkpoint = load_checkpoint(out)
    assert f"revision {checkpoint.revision[:19]}\n" in output
    assert checkpoint.feature_distance is not None
    read_known_answer(out, checkpoint.config)
    assert all(result for *_, result in tables(output))
    card = (out / "README.md").read_text()
    assert card.index("20 of `mel`") < card.index("## Classes")
    assert "## Site calibration\n" in new_card(checkpoint.config)  # by the entry point
    assert "site" not in read_config(site_source).provenance
    assert stored_revision(site_source) != checkpoint.revision
    for name in ("adapters.safetensors", "backbone.safetensors", "known_answer.png"):
        assert (out / name).read_bytes() == (site_source / name).read_bytes()


@pytest.mark.usefixtures("output")
def test_predictions_of_the_new_checkpoint_are_kept_as_calibrated(
    out: Path, local_folder: Path
) -> None:
    model = EulerLoRA.load(out, "cpu")
    paths = sorted(local_folder.glob("*.png"))
    predicted = model.predict(paths)
    assert model.config.temperature != 1  # the labels are random
    threshold = model.config.threshold(model.config.options())
    assert threshold is not None
    assert (threshold.images, threshold.data) == (len(paths), "clinic, site pictures")
    assert threshold.kept >= 0.95
    msp = predicted.ood_scores["msp"].value
    assert float((msp >= threshold.msp).double().mean()) == pytest.approx(threshold.kept)


def test_prediction_sets_are_fitted_where_every_class_has_enough_lesions(
    output: str, out: Path
) -> None:
    sets = read_config(out).prediction_sets
    assert {entry.coverage for entry in sets} == {0.9}
    assert {entry.units for entry in sets} == {(12, 20, 28)}
    assert {entry.unit for entry in sets} == {"lesion"}
    assert "| temperature | 10 lesions of each class of the model | 12 |" in output
    fitted = "fitted; for every class with a confidence of 72% or more"  # 1 - 0.9**12
    assert (
        f"| prediction sets 0.9 | 9 lesions of each class of the model | 12 | {fitted} |" in output
    )
    assert (
        "| prediction sets 0.95 | 19 lesions of each class of the model | 12 | too few |" in output
    )


def test_a_second_fit_gives_the_same_revision(
    site_source: Path, local_folder: Path, site_policy: Path, output: str, out: Path, tmp_path: Path
) -> None:
    fitted(
        site_source,
        "--data",
        local_folder,
        *NEVUS,
        "--out",
        tmp_path / "again",
        "--policy",
        site_policy,
    )
    assert stored_revision(tmp_path / "again") == stored_revision(out)


def test_a_fit_of_a_fitted_checkpoint_has_one_section_in_its_card(
    output: str, out: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    again = ("--policy", site_policy, "--hold-out", 0.4)
    printed = fitted(out, "--data", local_folder, *NEVUS, "--out", second, *again)
    assert (second / "README.md").read_text().count("## Site calibration") == 1
    assert read_config(second).provenance["site"]["source"] == stored_revision(out)
    (evidence,) = read_policy(second / "policy.toml").evidence
    (measured,) = evidence.measured
    assert measured.data == "clinic, held-out site pictures"
    assert (evidence.fit.routine.lesions, measured.target.lesions) == (12, 8)
    counts = re.findall(r"Fitted on (\d+) images, measured on (\d+) others", printed)[0]
    assert sum(map(int, counts)) == len(list(local_folder.glob("*.png")))
    rows = rows_of(local_folder, "bkl", "mel", "nevus")[::-1]
    renamed = pictures(local_folder, tmp_path / "copy" / "clinic", rows, "{number:03}.png")
    reverse = fitted(out, "--data", renamed, *NEVUS, "--out", tmp_path / "reverse", *again)
    assert tables(reverse) == tables(printed)  # the same lesions are held out
    assert "| held-out pictures | before | after |\n" in printed
    assert "| pictures kept by feature_distance |" in printed


def test_without_melanoma_there_is_no_policy(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    others = pictures(local_folder, tmp_path / "clinic", rows_of(local_folder, "bkl", "nevus"))
    output = fitted(
        site_source, "--data", others, *NEVUS, "--out", tmp_path / "out", "--policy", site_policy
    )
    assert not (tmp_path / "out" / "policy.toml").exists()
    assert "| routine threshold | 3 lesions of melanoma | 0 | too few |" in output


def test_parts_with_too_few_lesions_stay_as_they_were(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    few = pictures(local_folder, tmp_path / "clinic", rows_of(local_folder, "mel")[:4])
    output = fitted(site_source, "--data", few, "--out", tmp_path / "out", "--policy", site_policy)
    before, after = read_config(site_source), read_config(tmp_path / "out")
    assert (after.thresholds, after.features) == (before.thresholds, before.features)
    assert after.temperature == before.temperature
    assert "11 lesions of melanoma without a miss | 3 | not reached; too few |" in output
    assert "3 of 3 lesions found, lower bound 0.368" in output


@pytest.mark.parametrize(("routine", "found"), [(0.0001, "2 of 2"), (0.999, "0 of 2")])
def test_the_routine_threshold_of_the_policy_stays_with_too_few_critical_lesions(
    site_source: Path, local_folder: Path, policy: Path, tmp_path: Path, routine: float, found: str
) -> None:
    rules = re.sub(r"(routine|urgent) = [0-9.]+", rf"\1 = {routine}", policy.read_text(), count=2)
    policy.write_text(rules)
    rows = [*rows_of(local_folder, "mel")[:3], *rows_of(local_folder, "nevus")]
    few, out = pictures(local_folder, tmp_path / "clinic", rows), tmp_path / "out"
    output = fitted(site_source, "--data", few, *NEVUS, "--out", out, "--policy", policy)
    written = read_policy(out / "policy.toml")
    assert written.target.routine == routine
    (evidence,) = written.evidence
    assert not evidence.fit.routine.established
    row = f"| routine threshold | 3 lesions of melanoma | 2 | stays {routine:g}: {found} "
    (line,) = (line for line in output.splitlines() if line.startswith(row))
    assert line.endswith("too few |")


@pytest.mark.parametrize(("before", "falls"), [(0.0001, True), (0.999, False)])
def test_a_sensitivity_that_falls_on_held_out_lesions_is_a_warning(
    site_source: Path, local_folder: Path, policy: Path, tmp_path: Path, before: float, falls: bool
) -> None:
    rules = re.sub(r"(routine|urgent) = [0-9.]+", rf"\1 = {before}", policy.read_text(), count=2)
    policy.write_text(rules)
    status, output = fit(
        site_source, "--data", local_folder, "--out", tmp_path / "out", *NEVUS,
        "--policy", policy, "--sensitivity", 0.5, "--hold-out", 0.4,
    )  # fmt: skip
    assert status == 0, output
    assert ("sensitivity for melanoma falls from 1.000 to " in output) is falls
    assert ("\neulerlora serve " in output) is not falls


@pytest.mark.parametrize("far", [0.5, 1e6])
def test_the_far_threshold_of_the_same_model_is_only_relaxed(
    site_source: Path, local_folder: Path, policy: Path, tmp_path: Path, far: float
) -> None:
    text = re.sub(r"\nfar = [0-9.]+\n", f"\nfar = {far}\n", policy.read_text(), count=1)
    assert read_policy(policy).evidence
    policy.write_text(re.sub(r"sha256:[0-9a-f]{64}", stored_revision(site_source), text))
    out = tmp_path / "out"
    output = fitted(site_source, "--data", local_folder, *NEVUS, "--out", out, "--policy", policy)
    written = read_policy(out / "policy.toml")
    assert written.unfamiliar is not None
    (evidence,) = written.evidence
    options, melanomas = evidence.options, sorted(local_folder.glob("mel-*.png"))
    predicted = EulerLoRA.load(out, "cpu").predict(melanomas, options.mode, options.samples)
    distance = predicted.feature_distance
    assert distance is not None
    assert written.unfamiliar.far == pytest.approx(max(far, float(distance.max())), rel=0.05)
    (of_site,) = evidence.far
    assert (of_site.part, of_site.lesions, of_site.far) == ("fit", 20, 0)
    row = f"| far threshold | 1 lesions of malignant | 20 | {written.unfamiliar.far:g}: 0 of 20 "
    assert row in output


def test_the_far_threshold_of_another_model_is_removed(output: str, out: Path) -> None:
    assert read_policy(out / "policy.toml").unfamiliar is None
    assert "| 20 | removed: it was fitted to another model |" in output


def test_a_few_pictures_keep_the_margins_of_auto(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    few = pictures(local_folder, tmp_path / "clinic", rows_of(local_folder, "mel"))
    ours = ("--data", few, "--policy", site_policy)
    output = fitted(site_source, *ours, "--out", tmp_path / "without")
    assert "; no `samples=auto`, which needs 100 images" in output
    source = Path(shutil.copytree(site_source, tmp_path / "source"))
    config = read_config(source).model_copy(update={"margins": MARGINS})
    write_config(source, config)
    output = fitted(source, *ours, "--out", tmp_path / "with")
    after = read_config(tmp_path / "with")
    assert after.margins == MARGINS
    assert any(entry.options.samples == "auto" for entry in after.thresholds)
    assert "samples=auto" not in output


@pytest.mark.usefixtures("output")
def test_a_calibration_forgets_what_a_site_fitted(
    out: Path, local_folder: Path, tmp_path: Path
) -> None:
    for label, name in (("bkl", "bkl"), ("mel", "mel"), ("nevus", "nv")):
        for part in ("train", "test"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for path in local_folder.glob(f"{label}-*.png"):
                shutil.copy(path, folder)

    def calibrated(checkpoint: Path, name: str) -> str:
        ours = ("--data", tmp_path, "--out", tmp_path / name, "--device", "cpu")
        succeed("calibrate", checkpoint, *ours)
        return new_card(read_config(tmp_path / name))

    assert "Site calibration" not in calibrated(out, "calibrated")
    refitted = Path(shutil.copytree(out, tmp_path / "refitted"))
    config = read_config(out)
    facts = config.provenance["site"] | {"heads": True}
    provenance = config.provenance | {"site": facts}
    write_config(refitted, config.model_copy(update={"provenance": provenance}))
    section = calibrated(refitted, "of refitted heads").partition("Site calibration")[2]
    assert "The heads were refitted" in section
    assert "keep at least" not in section.partition("\n## ")[0]


def test_a_failed_fit_writes_nothing(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    folder, few = tmp_path / "used", tmp_path / "few"
    folder.mkdir()
    (folder / "notes").touch()
    pictures(local_folder, few, rows_of(local_folder, "nevus")[:5])
    for data, out, rules, named in (
        (local_folder, folder, ("--policy", site_policy), "used"),
        (local_folder, tmp_path / "other", (), "bcc, akiec"),
        (few, tmp_path / "out", ("--policy", site_policy), "got 4 and 0"),
    ):
        status, output = fit(site_source, "--data", data, "--out", out, *NEVUS, *rules)
        assert status == 1
        assert named in output.splitlines()[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"used", "few"}
    assert [path.name for path in folder.iterdir()] == ["notes"]


def overconfident(lesions: int, factor: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities (n, 1, 3) of calibrated logits times `factor`, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(lesions, 3, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return (factor * logits).log_softmax(dim=1).unsqueeze(1), labels


@pytest.mark.parametrize(("factor", "lesions"), [(3.0, 2000), (0.4, 2000), (1.0, 100)])
def test_the_factor_of_calibrated_logits_is_found_unless_it_is_1(
    factor: float, lesions: int
) -> None:
    outputs, labels = overconfident(lesions, factor)
    fit = fit_temperature(outputs, labels, units_of(range(lesions)))
    assert fit.helps == (factor != 1)
    assert fit.temperature == pytest.approx(factor, rel=0.1 * (factor != 1))


@pytest.mark.parametrize("lesions", [5, 40, 1000])
def test_lesions_that_are_all_right_do_not_make_the_model_certain(lesions: int) -> None:
    leads = 1 + 4 * torch.rand(lesions, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(lesions) % 2
    logits = leads.double()[:, None, None] * torch.eye(2)[labels][:, None]
    fit = fit_temperature(logits.log_softmax(dim=-1), labels, units_of(range(lesions)))
    assert 0.2 < fit.temperature < 1


def test_the_temperature_in_use_stays_unless_another_helps() -> None:
    outputs, labels = overconfident(100, 1.2)
    fit = fit_temperature(outputs, labels, units_of(range(100)), current=1.2)
    assert not fit.helps
    assert fit.temperature == 1.2
    assert fit.summary.startswith("1.2; ")


def test_copies_of_a_picture_add_no_lesion() -> None:
    outputs, labels = overconfident(60, 3.0)
    once = fit_temperature(outputs, labels, units_of(range(60)))
    times = torch.arange(60) % 4 + 1
    groups = torch.arange(60).repeat_interleave(times)
    often = fit_temperature(outputs[groups], labels[groups], units_of(groups))
    assert often.fitted == once.fitted


def test_nll_is_that_of_the_mean_probability() -> None:
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 1, 0])
    mean = (logits / 2.5).softmax(dim=-1).mean(dim=1)
    expected = F.nll_loss(mean.log(), labels, reduction="none")
    actual = image_nll(logits.log_softmax(dim=-1), labels, 2.5)
    assert actual == pytest.approx(expected.numpy())


CLASSES, WIDTH = 3, 4


def features_of(labels: Tensor, seed: int) -> Tensor:
    """(n, WIDTH) features around a mean for each class."""
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    return noise + 5 * torch.eye(CLASSES, WIDTH)[labels]


@pytest.fixture(scope="module")
def distance() -> FeatureDistance:
    labels = torch.arange(600) % CLASSES
    return FeatureDistance(fit_feature_statistics(features_of(labels, 0), labels, CLASSES))


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.arange(200) % CLASSES


def test_means_follow_a_common_change(distance: FeatureDistance, labels: Tensor) -> None:
    change = torch.tensor([4.0, 0, -3, 6])
    local = features_of(labels, 1) + change
    offset = fit_offset(distance, local, labels, units_of(range(200)))
    assert offset.helps
    assert torch.allclose(offset.offset, change, atol=0.3)
    means = distance.statistics.means + offset.offset
    new = FeatureDistance(replace(distance.statistics, means=means))
    others = features_of(labels, 2) + change
    assert (new(others) <= offset.threshold_after).double().mean() > 0.9
    unchanged = (distance(local) <= offset.threshold_after).double().mean()
    assert unchanged < 0.2


def test_means_stay_if_one_picture_would_move_them(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local = features_of(labels, 3)
    local[0] += 1000
    offset = fit_offset(distance, local, labels, units_of(range(200)))
    assert not offset.helps
    assert "not moved" in offset.summary


def test_the_offset_of_a_picture_does_not_depend_on_its_group(
    distance: FeatureDistance, labels: Tensor
) -> None:
    local, groups = features_of(labels, 1), units_of(np.arange(200) // 4)
    offset = fit_offset(distance, local, labels, groups)
    changed = local.clone()
    changed[:4] += 100  # the first group
    assert torch.equal(
        fit_offset(distance, changed, labels, groups).by_picture[:4], offset.by_picture[:4]
    )


def test_a_fit_prints_what_it_did_and_writes_a_policy_that_the_client_reads(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = site_policy.read_text()
    status, output = fit(
        site_source, "--data", local_folder, "--out", out, *NEVUS, "--policy", site_policy,
        "--hold-out", 0.5,
    )  # fmt: skip
    assert status == 0, output
    assert "clinic: 90 images (18 bkl, 30 mel, 42 nv), 0 ignored" in output
    assert "| OOD thresholds | 19 lesions | 30 | keep at least 95% of new" in output
    assert "| held-out pictures | before | after |" in output
    assert f"eulerlora serve {out} --policy {out / 'policy.toml'}" in output
    assert "counts as a lesion" not in output
    (evidence,) = read_policy(out / "policy.toml").evidence
    assert evidence.revision == stored_revision(out)
    assert (out / "policy.toml").read_text().startswith("# ours\n")
    assert site_policy.read_text() == before


def test_images_without_lesions_are_counted_one_by_one_and_the_output_says_so(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folders"
    for path in local_folder.glob("*-0.png"):
        name = path.name.partition("-")[0]
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / path.name).write_bytes(path.read_bytes())
    status, output = fit(
        site_source, "--data", folder, "--out", tmp_path / "out", "--ignore", "nevus",
        "--policy", site_policy, "--mode", "det",
    )  # fmt: skip
    assert status == 0, output
    assert "every picture counts" in output
    assert "32 images (12 bkl, 20 mel), 28 ignored" in output
    (evidence,) = read_policy(tmp_path / "out" / "policy.toml").evidence
    assert (evidence.options, evidence.measured) == (DET, ())


@pytest.mark.parametrize("unit", ["lesion", "group"])
def test_patients_with_lesions_of_several_classes_are_no_lesions(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path, unit: str
) -> None:
    """Of 20 patients, each has a melanoma, and 12 have benign lesions of both classes too."""
    data = Path(shutil.copytree(local_folder, tmp_path / "clinic"))
    rows = ["path,label,group" + ",lesion" * (unit == "lesion")]
    for path in sorted(data.glob("*.png")):
        label, lesion, _ = path.name.split("-")
        cells = [path.name, label, f"P{int(lesion) % 20}", f"{label}-{lesion}"]
        rows.append(",".join(cells[: len(rows[0].split(","))]))
    (data / "labels.csv").write_text("\n".join(rows))
    status, output = fit(
        site_source, "--data", data, "--out", tmp_path / "out", *NEVUS, "--policy", site_policy,
        "--mode", "det", "--sensitivity", 0.75,
    )  # fmt: skip
    assert status == 0, output
    (evidence,) = read_policy(tmp_path / "out" / "policy.toml").evidence
    assert (evidence.fit.unit, evidence.fit.routine.lesions) == (unit, 20)
    assert evidence.fit.urgent.lesions <= {"lesion": 60, "group": 52}[unit]
    assert read_config(tmp_path / "out").provenance["site"]["unit"] == unit
    assert f" {unit}s of melanoma" in output
    assert ("not about lesions" in output) == (unit == "group")
    counts = {"bkl": 12, "mel": 20, "nv": {"lesion": 28, "group": 20}[unit]}
    assert read_config(tmp_path / "out").provenance["site"]["units"] == counts


@pytest.mark.parametrize(
    ("sensitivity", "trained", "established"),
    [(0.9, 0, True), (0.9, 2, False), (0.95, 0, False)],
)
def test_other_classes_can_be_the_target_and_what_is_not_established_is_stored_and_printed(
    site_source: Path, local_folder: Path, tmp_path: Path,
    sensitivity: float, trained: int, established: bool,
) -> None:  # fmt: skip
    """The packaged policy names classes that this model lacks. 40 lesions are too few for 0.95, and
    pictures of the training establish nothing.
    """
    source = shutil.copytree(site_source, tmp_path / "source")
    shown = [local_folder / f"nevus-{number}-0.png" for number in range(trained)]
    digests = image_digests([LabelledImage(path.name, path, 0) for path in shown])
    stored = torch.cat([digests, torch.tensor([3])]).sort().values
    write_training_images(source, save({"adapters": stored}))
    status, output = fit(
        source, "--data", local_folder, "--out", tmp_path / "out", *NEVUS, "--target", "nv",
        "--target", "bkl", "--target-name", "mole", "--mode", "det", "--sensitivity", sensitivity,
        "--predictive-value", 0.1,
    )  # fmt: skip
    assert status == 0, output
    policy = read_policy(tmp_path / "out" / "policy.toml")
    assert (policy.target.name, policy.target.classes) == ("mole", ("nv", "bkl"))
    assert policy.target.critical.classes == ("nv", "bkl")
    evidence = policy.evidence[0].fit
    assert (evidence.routine.lesions, evidence.routine.established, evidence.in_training) == (
        40, established, trained
    )  # fmt: skip
    needed = {0.9: 9, 0.95: 19}[sensitivity]
    assert f"| routine threshold | {needed} lesions of mole | 40 |" in output
    assert ("warning: This policy is fitted, but not proven" in output) is not established
    assert (f"trained on {trained} of the pictures" in output) is (trained > 0)


def test_copies_in_two_classes_are_refused_with_the_whole_list_and_those_of_one_are_a_lesion(
    site_source: Path, local_folder: Path, site_policy: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(local_folder, tmp_path / "clinic"))
    for number in range(2):
        shutil.copy(data / f"nevus-{number}-0.png", data / f"copy-{number}.png")
    (data / "labels.csv").unlink()
    rows = [
        f"{path.name},{path.name.split('-')[0]}"
        for path in sorted(data.glob("*-0.png"))
        if not path.name.startswith("copy")
    ]
    columns = ("--path-column", "file", "--label-column", "dx")

    def fitted(label: str, out: str) -> tuple[int, str]:
        copies = [f"copy-{number}.png,{label}" for number in range(2)]
        (data / "labels.csv").write_text("\n".join(["file,dx", *rows, *copies]))
        return fit(site_source, "--data", data, "--out", tmp_path / out, *NEVUS, *columns,
                   "--policy", site_policy, "--mode", "det")  # fmt: skip

    status, output = fitted("bkl", "refused")
    assert status != 0 and not (tmp_path / "refused").exists()
    assert all(f"copy-{number}.png (pictures, bkl)" in output for number in range(2))
    status, output = fitted("nevus", "out")
    assert status == 0, output
    assert "2 copies" in output
    assert "every picture counts" in output  # no groups are stated


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--class", "nevus"], "--class"),
        (["--class", "nevus=nv", "--class", "nevus=mel"], "--class"),
        (["--mode", "det", "--samples", "4"], "--samples"),
        (["--hold-out", "1"], "--hold-out"),
        (["--target", "scc"], "--target"),
        (["--target-name", "mole"], "--target-name"),
        (["--coverage", "1.5"], "--coverage"),
    ],
)
def test_wrong_usage_is_refused(
    site_source: Path, local_folder: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    status, output = fit(site_source, "--data", local_folder, "--out", tmp_path / "out", *options)
    assert status == 2
    assert message in output
    assert not (tmp_path / "out").exists()
