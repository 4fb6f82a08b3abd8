"""`eulerlora site fit` on the command line: its output, its files and its errors."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eulerlora.checkpoint.files import stored_revision
from eulerlora_client.policy.policy import default_policy_text, read_policy
from training.commands.calibrate import site_command

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
    assert "| OOD thresholds | 19 lesions | 30 | fitted |" in done.output
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--class", "nevus"], "--class: expected LOCAL=CLASS, got nevus"),
        (["--class", "nevus=nv", "--class", "nevus=mel"], "expected one class for nevus"),
        (["--mode", "det", "--samples", "4"], "expected --samples only with --mode stoch"),
        (["--hold-out", "1"], "--hold-out"),
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
