"""`eulerlora site fit` on the command line: its output, its files and its errors."""

import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from eulerlora.checkpoint.files import TRAINING_IMAGES_FILE, stored_revision
from eulerlora_client.policy.policy import default_policy_text, read_policy
from training.commands.calibrate import site_command
from training.data.digests import image_digests
from training.data.images import LabelledImage

NEVUS = ("--class", "nevus=nv")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Returns the packaged policy, changed to the classes of the tiny checkpoint."""
    path = tmp_path / "own.toml"
    text = default_policy_text().replace('["mel", "bcc", "akiec"]', '["mel"]')
    path.write_text(f"# ours\n{text}")
    return path


def fit(*arguments: object) -> Result:
    words = ["fit", *arguments, "--device", "cpu"]
    return CliRunner().invoke(site_command, list(map(str, words)))


def test_a_fit_prints_what_it_did_and_writes_a_policy_that_the_client_reads(
    site_source: Path, local_folder: Path, policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = policy.read_text()
    done = fit(
        site_source, "--data", local_folder, "--out", out, *NEVUS, "--policy", policy,
        "--hold-out", 0.5,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "clinic: 90 images (18 bkl, 30 mel, 42 nv), 0 ignored" in done.output
    assert "| OOD thresholds | 19 lesions | 30 | keep at least 95% of new" in done.output
    assert "| held-out pictures | before | after |" in done.output
    assert f"eulerlora serve {out} --policy {out / 'policy.toml'}" in done.output
    assert "counts as a lesion" not in done.output
    written = read_policy(out / "policy.toml")
    assert written.evidence is not None
    assert written.evidence.revision == stored_revision(out)
    assert (out / "policy.toml").read_text().startswith("# ours\n")
    assert policy.read_text() == before


def test_images_without_lesions_are_counted_one_by_one_and_the_output_says_so(
    site_source: Path, local_folder: Path, policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folders"
    for path in local_folder.glob("*-0.png"):
        name = path.name.partition("-")[0]
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / path.name).write_bytes(path.read_bytes())
    done = fit(
        site_source, "--data", folder, "--out", tmp_path / "out", "--ignore", "nevus",
        "--policy", policy, "--mode", "det",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "every image counts as a lesion" in done.output
    assert "32 images (12 bkl, 20 mel), 28 ignored" in done.output
    evidence = read_policy(tmp_path / "out" / "policy.toml").evidence
    assert evidence is not None
    assert (evidence.mode, evidence.samples, evidence.measured) == ("det", 1, ())


def test_other_classes_can_be_the_target(
    site_source: Path, local_folder: Path, tmp_path: Path
) -> None:
    """The packaged policy names classes that this model lacks."""
    done = fit(
        site_source, "--data", local_folder, "--out", tmp_path / "out", "--class", "nevus=nv",
        "--target", "nv", "--target", "bkl", "--target-name", "mole", "--mode", "det",
        "--sensitivity", 0.9,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    policy = read_policy(tmp_path / "out" / "policy.toml")
    assert (policy.target.name, policy.target.classes) == ("mole", ("nv", "bkl"))
    assert policy.target.critical.classes == ("nv", "bkl")
    assert policy.evidence is not None
    assert (policy.evidence.fit.lesions, policy.evidence.fit.established) == (40, True)
    assert "| urgent threshold | 1 lesions of mole | 40 |" in done.output
    assert "warning:" not in done.output


@pytest.mark.parametrize(("sensitivity", "trained"), [(0.9, 2), (0.95, 0)])
def test_what_a_fit_does_not_establish_is_stored_and_printed(
    site_source: Path, local_folder: Path, tmp_path: Path, sensitivity: float, trained: int
) -> None:
    """40 lesions are too few for 0.95, and pictures of the training establish nothing."""
    source = shutil.copytree(site_source, tmp_path / "source")
    shown = [local_folder / f"nevus-{number}-0.png" for number in range(trained)]
    digests = image_digests([LabelledImage(path.name, path, 0) for path in shown])
    stored = torch.cat([digests, torch.tensor([3])]).sort().values
    save_file({"adapters": stored}, source / TRAINING_IMAGES_FILE)
    done = fit(
        source, "--data", local_folder, "--out", tmp_path / "out", "--class", "nevus=nv",
        "--target", "nv", "--target", "bkl", "--mode", "det", "--sensitivity", sensitivity,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    evidence = read_policy(tmp_path / "out" / "policy.toml").evidence
    assert evidence is not None
    assert (evidence.fit.established, evidence.fit.in_training) == (False, trained)
    assert "warning: This policy is fitted, but not proven" in done.output
    assert (f"trained on {trained} of the pictures" in done.output) is (trained > 0)


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
    done = fit(site_source, "--data", local_folder, "--out", tmp_path / "out", *options)
    assert done.exit_code == 2
    assert message in done.output
    assert not (tmp_path / "out").exists()
