"""`eulerlora policy fit` and the client agree on the policy file and on the dispositions."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from starlette.testclient import TestClient

from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import read_config, save_checkpoint, write_config
from eulerlora.model import EulerLoRA
from eulerlora_client.commands.policy import policy_command
from eulerlora_contract import answers as contract
from eulerlora_contract.answers import ClassName, Disposition, TargetClasses, Threshold
from eulerlora_contract.policy.policy import default_policy, default_policy_text, read_policy
from service.app import Options
from tests.conftest import THRESHOLDS, config_of, random_network
from tests.eulerlora_contract.policy_inputs import GOOD, make_prediction
from tests.service.conftest import app_of
from training.calibration.calibrate import calibrate
from training.commands.calibrate import policy_fit_command
from training.data.datasets import checkpoint_dataset

ROOT = Path(__file__).parents[1]
CLASSES = ("bkl", "mel", "nv")
TRAINING_IMAGES = {"bkl": 20, "mel": 120, "nv": 20}  # of which a tenth is for calibration
TEST_IMAGES = {"bkl": 5, "mel": 6, "nv": 8}
SENSITIVITY = 0.75  # needs at least 11 lesions without a miss


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a data directory with random images of three classes."""
    folder = tmp_path_factory.mktemp("lesions")
    noise = np.random.default_rng(0)
    for part, counts in (("train", TRAINING_IMAGES), ("test", TEST_IMAGES)):
        for name, count in counts.items():
            class_folder = folder / "images" / part / name
            class_folder.mkdir(parents=True)
            for index in range(count):
                pixels = noise.integers(0, 256, (4, 4, 3)).astype(np.uint8)
                image = Image.fromarray(pixels).resize((64, 48), Image.Resampling.NEAREST)
                image.save(class_folder / f"{index:02}.png")
    return folder


IMAGES: dict[str, object] = {"kind": "imagefolder", "path": "images"}


def saved(folder: Path, classes: tuple[str, ...] = CLASSES, **changes: object) -> Path:
    """Writes a random checkpoint of IMAGES. changes: of its config, and `data` of its recipe."""
    network = random_network(classes=len(classes))
    recipe = {"data": changes.pop("data", IMAGES)}
    names = tuple(ClassName(name=name, description=name) for name in classes)
    config = config_of(network, classes=names, provenance={"recipe": recipe, "seed": 0}, **changes)
    save_checkpoint(folder / "tiny", network, config, "# tiny\n")
    return folder / "tiny"


def copied_data(data: Path, folder: Path, sources: dict[str, str]) -> Path:
    """Copies classes of `data`, by their new names, to a data directory in a folder."""
    for part in ("train", "test"):
        for name, source in sources.items():
            of_part = Path("images") / part
            shutil.copytree(data / of_part / source, folder / "data" / of_part / name)
    return folder / "data"


@pytest.fixture(scope="module")
def checkpoint(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a checkpoint, calibrated on `data`, that flags about a quarter of its images."""
    folder = saved(tmp_path_factory.mktemp("checkpoint"))
    images = checkpoint_dataset(read_config(folder), data)
    config = calibrate(folder, images, torch.device("cpu"), samples=(4,))
    thresholds = tuple(map(_with_lower_distance, config.thresholds))
    write_config(folder, config.model_copy(update={"thresholds": thresholds}))
    return folder


def _with_lower_distance(threshold: Threshold) -> Threshold:
    distance = threshold.feature_distance
    assert distance is not None
    lower = distance.model_copy(update={"threshold": distance.upper_quartile})
    return threshold.model_copy(update={"feature_distance": lower})


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Returns the packaged policy, changed to the classes of `data`."""
    path = tmp_path / "own.toml"
    text = default_policy_text().replace('["mel", "bcc", "akiec"]', '["mel"]')
    path.write_text("# ours\n" + text)
    return path


def fit(checkpoint: Path, data: Path, policy: Path, *options: str) -> str:
    arguments = [checkpoint, "--data", data, "--policy", policy, "--device", "cpu", *options]
    done = CliRunner().invoke(policy_fit_command, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_client_reads_the_fitted_policy(checkpoint: Path, data: Path, policy: Path) -> None:
    before = read_policy(policy)
    options = ("--sensitivity", str(SENSITIVITY), "--precision", "float32")
    printed = fit(checkpoint, data, policy, *options)
    after = read_policy(policy)
    evidence = after.evidence
    assert evidence is not None
    (measured,) = evidence.measured
    assert after.version == before.version + 1
    assert (evidence.model, evidence.mode, evidence.samples) == ("tiny", "stoch", 4)
    assert evidence.revision == EulerLoRA.load(checkpoint, "cpu").revision
    assert evidence.precision == "float32"
    assert (evidence.fit.data, measured.data) == (
        "images, image folder, calibration part",
        "images, image folder, test part",
    )
    assert (evidence.fit.images, evidence.fit.lesions, evidence.fit.found) == (16, 12, 12)
    assert (evidence.wanted, evidence.fit.established) == (SENSITIVITY, True)
    assert evidence.fit.lower_bound == 0.7790  # 0.05 ** (1 / 12), rounded down
    assert (measured.images, measured.lesions, measured.target.lesions) == (19, 19, 6)
    assert after.uncertainty.entropy_nats != before.uncertainty.entropy_nats
    assert policy.read_text().startswith("# ours\n# The triage policy")
    for line in (
        f"| urgent threshold | 1 lesions of melanoma | 12 | {after.target.urgent:g}: ",
        "| bound of 0.75 | 11 lesions of melanoma without a miss | 12 | reached |",
        f": melanoma | 6 | {measured.critical.urgent} | ",
        f"{policy}: version {after.version}",
    ):
        assert line in printed


def test_the_client_decides_as_the_fit_counts(checkpoint: Path, data: Path, policy: Path) -> None:
    printed = fit(checkpoint, data, policy, "--sensitivity", "0.1", "--precision", "float32")
    rules = read_policy(policy)
    model = EulerLoRA.load(checkpoint, "cpu")
    paths = sorted((data / "images" / "test").rglob("*.png"))
    predicted = model.predict(paths, "stoch", 4)
    counts = dict.fromkeys(Disposition, 0)
    for index in range(len(paths)):
        decision = rules.decide(prediction_of(predicted, index), GOOD)
        counts[decision.disposition] += 1
    order = ("urgent", "unfamiliar", "refer", "routine")
    for name in order:
        share = counts[Disposition(name)] / len(paths)
        assert f"| {name}, of all images | {share:.3f} |" in printed
    assert sum(counts[Disposition(name)] > 0 for name in order) >= 3  # the rules differ


def prediction_of(predicted: Predictions, index: int) -> contract.Prediction:
    """Returns the response of the service for one image."""
    trajectories = predicted.trajectories[index]
    assert predicted.ood is not None
    assert predicted.unfamiliar is not None
    return make_prediction(
        probabilities=dict(zip(CLASSES, predicted.probabilities[index].tolist(), strict=True)),
        entropy=float(predicted.entropy[index]),
        ood=bool(predicted.ood[index]),
        unfamiliar=bool(predicted.unfamiliar[index]),
        trajectory_labels=tuple(CLASSES[label] for label in trajectories.argmax(-1).tolist()),
    )


def test_a_missing_policy_file_starts_as_the_packaged_policy(tmp_path: Path, data: Path) -> None:
    copied = {"akiec": "bkl", "bcc": "bkl", "mel": "mel", "nv": "nv"}
    directory = copied_data(data, tmp_path, copied)
    folder = saved(tmp_path, tuple(copied), thresholds=THRESHOLDS)
    path = tmp_path / "own.toml"
    arguments = ["fit", folder, "--data", directory, "--policy", path]
    done = CliRunner().invoke(policy_command, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    packaged, fitted = default_policy(), read_policy(path)
    assert fitted.version == packaged.version + 1
    assert fitted.quality == packaged.quality
    assert fitted.evidence is not None
    assert fitted.evidence.model == "tiny"


def test_a_target_of_other_classes_is_fitted_and_decides_over_http(
    tmp_path: Path, data: Path
) -> None:
    directory = copied_data(data, tmp_path, {"melanoma": "mel", "mole": "nv"})
    target = TargetClasses.model_validate({"name": "dangerous", "classes": ["melanoma"]})
    folder = saved(tmp_path, ("melanoma", "mole"), thresholds=THRESHOLDS, target=target)
    path = tmp_path / "own.toml"
    fit(folder, directory, path, "--sensitivity", str(SENSITIVITY))
    app = app_of(EulerLoRA.load(folder, "cpu"), options=Options(policy=read_policy(path)))
    picture = next((data / "images" / "test" / "mel").iterdir()).read_bytes()
    with TestClient(app) as client:
        answer = client.post("/triage", files={"file": ("one.png", picture)})
        page = client.get("/").text
    result = contract.TriageResult.model_validate(answer.json())
    assert result.policy.established
    assert (result.target.name, result.target.classes) == ("dangerous", ("melanoma",))
    expected = result.prediction.probabilities["melanoma"]
    assert result.target.probability == pytest.approx(expected, rel=1e-5)
    assert 'data-subject="triage"' in page and "dangerous" in page


def test_without_a_calibration_part_the_fit_uses_the_test_part_and_measures_nothing(
    tmp_path: Path, data: Path, policy: Path
) -> None:
    folder = saved(tmp_path, data=IMAGES | {"split": "paper"}, thresholds=THRESHOLDS)
    printed = fit(folder, data, policy)
    assert "Not measured on a test part" in printed
    evidence = read_policy(policy).evidence
    assert evidence is not None
    assert evidence.measured == ()
    assert "test part" in evidence.fit.data
    assert (evidence.fit.images, evidence.fit.lesions) == (19, 6)


def test_archives_are_measured_after_the_test_part(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "clinic.toml"
    labels.write_text('title = "Clinic"\noutside = ["bkl"]\n[labels]\nmel = "mel"\nnv = "nv"\n')
    printed = fit(checkpoint, data, policy, "--archive", f"{labels}={data / 'images' / 'test'}")
    evidence = read_policy(policy).evidence
    assert evidence is not None
    test, clinic = evidence.measured
    assert (clinic.data, clinic.images, clinic.target) == ("Clinic", 19, test.target)
    assert clinic.outside is not None
    assert (clinic.outside.labels, clinic.outside.lesions) == (("bkl",), 5)
    assert (test.others.lesions, clinic.others.lesions) == (13, 8)
    assert "| Clinic: bkl, " in printed


@pytest.mark.parametrize(
    ("archive", "message"),
    [("ph2", "expected NAME=PATH, got ph2"), ("ph2=absent", "folder or tar archive, got absent")],
)
def test_a_wrong_archive_is_refused_before_any_work(
    checkpoint: Path, data: Path, policy: Path, archive: str, message: str
) -> None:
    arguments = [checkpoint, "--data", data, "--policy", policy, "--archive", archive]
    done = CliRunner().invoke(policy_fit_command, list(map(str, arguments)))
    assert done.exit_code == 2
    assert message in done.output
