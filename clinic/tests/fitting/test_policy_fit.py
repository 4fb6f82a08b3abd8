"""`eulerlora policy fit` on the command line: the policy that it writes, its output, its errors."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eulerlora import EulerLoRA
from eulerlora.checkpoint.config import PrecisionChange
from eulerlora.checkpoint.files import save_checkpoint
from eulerlora_clinic.policy.policy import default_policy, read_policy
from eulerlora_contract.checkpoints import ClassName, TargetClasses
from tests.conftest import STOCH, THRESHOLDS, config_of, random_network
from tests.program import run, succeed
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset

TRAINING_IMAGES = {"bkl": 20, "mel": 300, "nv": 20}  # of which a tenth is for calibration
TEST_IMAGES = {"bkl": 5, "mel": 6, "nv": 8}
IMAGES: dict[str, object] = {"kind": "imagefolder", "path": "images"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def saved(
    folder: Path,
    data: dict[str, object] = IMAGES,
    seed: int = 0,
    recipe: dict[str, object] | None = None,
    classes: tuple[str, ...] = tuple(TEST_IMAGES),
    **changes: object,
) -> Path:
    """`recipe` is that of `data` by default; `changes` are of the config."""
    names = tuple(ClassName(name=name, description=name) for name in classes)
    network = random_network(classes=len(names), seed=seed)
    provenance = {"recipe": recipe or {"data": data}, "seed": 0}
    config = config_of(
        network, classes=names, thresholds=THRESHOLDS, provenance=provenance, **changes
    )
    save_checkpoint(folder / "tiny", network, config, "# tiny\n")
    return folder / "tiny"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("checkpoint"))


def fit(checkpoint: Path, data: Path, policy: Path, *options: str) -> str:
    arguments = ["--data", data, "--policy", policy, "--device", "cpu", *options]
    return succeed("policy", "fit", checkpoint, *arguments).out


def test_a_fit_writes_thresholds_and_evidence_that_the_client_reads(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path
) -> None:
    before = read_policy(policy)
    chart = tmp_path / "thresholds.svg"
    rule = "sensitivity = 0.95"
    options = ("--rule", rule, "--precision", "float32", "--chart", str(chart))
    printed = fit(checkpoint, data, policy, *options)
    assert "calibration part (fit)" in chart.read_text()
    after = read_policy(policy)
    (evidence,) = after.evidence
    (measured,) = evidence.measured
    assert after.version == before.version + 1
    assert (evidence.model, evidence.options) == ("tiny", STOCH)
    assert evidence.revision == EulerLoRA.load(checkpoint, "cpu").revision
    routine = evidence.fit.routine
    assert (evidence.fit.images, routine.lesions, routine.hits) == (34, 30, 30)
    assert (after.target.rule, evidence.fit.rule) == (rule, rule)
    assert (routine.wanted, routine.established) == (0.90, True)
    assert routine.lower_bound == 0.9049  # 0.05 ** (1 / 30), rounded down
    assert evidence.fit.urgent.wanted == 0.5
    assert (measured.images, measured.lesions, measured.target.lesions) == (19, 19, 6)
    assert after.uncertainty.entropy_nats != before.uncertainty.entropy_nats
    assert policy.read_text().startswith("# ours\n# The triage policy")
    for line in (
        f"| routine threshold | 9 pictures of melanoma | 30 | {after.target.routine:g}: ",
        f"| urgent threshold | 20 pictures | 34 | {after.target.urgent:g}: ",
        f": melanoma | 6 | {measured.critical.urgent} | ",
        f"{policy}: version {after.version}",
    ):
        assert line in printed


def test_a_fit_keeps_the_rule_of_the_file_and_the_monitor_promises_its_bound(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path
) -> None:
    found = []
    for rule in ((), ("--rule", "sensitivity = 0.95"), ()):
        fit(checkpoint, data, policy, "--precision", "float32", *rule)
        fitted = read_policy(policy)
        routine = fitted.evidence[0].fit.routine
        outcomes = tmp_path / "outcomes.csv"
        outcomes.write_text(
            "disposition,reasons,policy_hash,confirmed\n" + f"urgent,,{fitted.hash},mel\n" * 4
        )
        promised = succeed("monitor", outcomes, "--policy", policy).out
        tolerated = f"{1 - routine.wanted:.3g} is neither" in promised
        found.append((fitted.target.rule, routine.wanted, routine.established, tolerated))
    relaxed = ("sensitivity = 0.95", 0.90, True, True)
    assert found == [("none missed in calibration", 0.95, False, True), relaxed, relaxed]


def test_an_unknown_rule_is_refused_before_any_work(
    checkpoint: Path, data: Path, policy: Path
) -> None:
    done = run("policy", "fit", checkpoint, "--data", data, "--policy", policy, "--rule", "0.9")
    assert (done.status, "--rule" in done.err) == (2, True)


def test_a_missing_file_starts_as_the_packaged_policy_with_the_target_of_the_checkpoint(
    tmp_path: Path, data: Path
) -> None:
    target = TargetClasses.model_validate({"name": "dangerous", "classes": ["mel"]})
    path = tmp_path / "own.toml"
    fit(saved(tmp_path, target=target), data, path)
    packaged, fitted = default_policy(), read_policy(path)
    assert (fitted.version, fitted.quality) == (packaged.version + 1, packaged.quality)
    assert (fitted.target.name, fitted.target.classes) == ("dangerous", ("mel",))


def test_without_a_calibration_part_the_fit_uses_the_test_part_and_measures_nothing(
    tmp_path: Path, data: Path, policy: Path
) -> None:
    before = read_policy(policy).target
    printed = fit(saved(tmp_path, IMAGES | {"split": "paper"}), data, policy)
    assert "Not measured on a test part" in printed
    fitted = read_policy(policy)
    (evidence,) = fitted.evidence
    assert evidence.measured == ()
    assert (evidence.fit.images, evidence.fit.routine.lesions) == (19, 6)
    assert fitted.target.routine == before.routine  # six are too few
    assert (
        f"| routine threshold | 19 pictures of melanoma | 6 | stays {before.routine:g}" in printed
    )
    assert printed.splitlines()[-1].startswith("warning: This policy is fitted, but not proven")


def test_archives_are_measured_after_the_test_part(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "clinic.toml"
    labels.write_text('title = "Clinic"\noutside = ["bkl"]\n[labels]\nmel = "mel"\nnv = "nv"\n')
    fit(checkpoint, data, policy, "--archive", f"{labels}={data / 'images' / 'test'}")
    (evidence,) = read_policy(policy).evidence
    test, clinic = evidence.measured
    assert (clinic.data, clinic.images, clinic.target) == ("Clinic", 19, test.target)
    assert clinic.outside is not None
    assert (clinic.outside.labels, clinic.outside.lesions) == (("bkl",), 5)
    assert (test.others.lesions, clinic.others.lesions) == (13, 8)


def test_far_is_fitted_to_calibration_lesions_and_half_of_an_archive_and_kept_for_its_model(
    data: Path, policy: Path, tmp_path: Path, site_source: Path
) -> None:
    checkpoint, packaged = tmp_path / "tiny", policy.read_text()
    shutil.copytree(site_source, checkpoint)
    labels = tmp_path / "clinic.toml"
    labels.write_text('title = "Clinic"\n[labels]\nmel = "mel"\nnv = "nv"\nbkl = "bkl"\n')
    archive = f"{labels}={data / 'images' / 'test'}"
    options = ("--precision", "float32", "--far", archive, "--archive", archive)
    printed = fit(checkpoint, data, policy, *options)
    fitted = read_policy(policy)
    (evidence,) = fitted.evidence
    assert fitted.unfamiliar is not None
    calibration, first, second = evidence.far
    assert [(one.part, one.lesions) for one in evidence.far] == [
        ("fit", 30), ("fit", 3), ("measured", 3)
    ]  # fmt: skip
    assert (first.data, second.data) == ("Clinic", "Clinic")
    assert (calibration.far, first.far) == (0, 0)  # one of 200 may be far
    assert fitted.unfamiliar.ood is (calibration.ood + first.ood == 0)
    assert f"far = {fitted.unfamiliar.far:g}" in printed
    assert f"| Clinic, lesions, measured | 3 | {second.far} | {second.ood} |" in printed
    assert "3 " in evidence.measured[1].data.removeprefix("Clinic")  # had a part in the fit
    with (policy).open("a") as file:
        file.write("# the end\n")
    known = ("--precision", "float32")
    for far in ("0.001", "1000000.0"):
        own = re.sub(r"\nfar = [0-9.]+\n", f"\nfar = {far}\n", policy.read_text(), count=1)
        policy.write_text(own)
        assert "[unfamiliar]" not in fit(checkpoint, data, policy, *known)
        kept = read_policy(policy)
        assert kept.unfamiliar is not None
        assert kept.unfamiliar.far > 0.001
        assert (kept.unfamiliar.far == 1e6) is (far == "1000000.0")
        (of_calibration,) = kept.evidence[0].far
        assert (of_calibration.part, of_calibration.lesions, of_calibration.far) == ("fit", 30, 0)
    policy.write_text(packaged)
    printed = fit(checkpoint, data, policy, *known)
    assert "warning: [unfamiliar] was fitted to another model" in printed
    assert read_policy(policy).unfamiliar is None


def test_far_needs_feature_statistics(checkpoint: Path, data: Path, policy: Path) -> None:
    archive = f"ph2={data / 'images' / 'test'}"
    text = policy.read_text()
    done = run("policy", "fit", checkpoint, "--data", data, "--policy", policy, "--far", archive)
    assert done.status == 1
    assert policy.read_text() == text


def saved_folds(folder: Path, count: int = 3) -> list[Path]:
    """Checkpoints of trainings that left out another fold each, with other weights."""
    return [
        saved(folder / f"fold-{fold}", IMAGES | {"fold": fold}, seed=fold + 1)
        for fold in range(count)
    ]


def test_folds_fit_to_the_predictions_of_all_training_images_by_checkpoints_that_left_them_out(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path
) -> None:
    folds = saved_folds(tmp_path)
    options = [option for fold in folds for option in ("--fold", str(fold))]
    fit(checkpoint, data, policy, "--precision", "float32", *options)
    fitted = read_policy(policy)
    (evidence,) = fitted.evidence
    assert evidence.revision == EulerLoRA.load(checkpoint, "cpu").revision
    assert (evidence.fit.folds, evidence.fit.images) == (3, sum(TRAINING_IMAGES.values()))
    assert (evidence.fit.routine.lesions, evidence.fit.in_training) == (300, 0)
    assert [measured.images for measured in evidence.measured] == [19]
    scores = []
    for number, fold in enumerate(folds):
        model = EulerLoRA.load(fold, "cpu")
        settings = DataSettings.model_validate(IMAGES | {"fold": number})
        held_out = read_dataset(settings, data).parts["calibration"]
        shown = [image.pixels() for image in held_out if image.label == 1]
        arrays = [pixels.permute(1, 2, 0).numpy() for pixels in shown]
        scores += model.predict(arrays, "stoch", 4).probability(["mel"]).tolist()
    assert len(scores) == 300
    lowest = min(scores)
    assert lowest * 0.999 < fitted.target.routine <= lowest


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ({"data": IMAGES}, {}, "without"),
        ({"data": IMAGES | {"fold": 0}}, {}, "fold 0 twice"),
        ({"data": IMAGES | {"fold": 1, "split": "paper"}}, {}, "data.split"),
        ({"data": IMAGES | {"fold": 1}, "training": {"epochs": 3}}, {}, "training.epochs"),
        (
            {"data": IMAGES | {"fold": 1}},
            {"classes": ("mel", "bkl", "nv")},
            "--fold",
        ),  # their order
    ],
)
def test_checkpoints_that_do_not_belong_together_are_refused(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path, recipe, changes, message: str
) -> None:
    (first,) = saved_folds(tmp_path, 1)
    other = saved(tmp_path, recipe=recipe, **changes)
    text = policy.read_text()
    arguments = ["--data", data, "--policy", policy, "--fold", first, "--fold", other]
    done = run("policy", "fit", checkpoint, *arguments)
    assert (done.status, message in done.err) == (1, True)
    assert policy.read_text() == text


def test_what_the_command_line_and_the_file_say_of_a_recipe_may_differ(
    checkpoint: Path, data: Path, policy: Path, tmp_path: Path
) -> None:
    source = {"file": "other.toml", "variant": "b", "overrides": ["data.fold=0"]}
    fold = saved(tmp_path, recipe={"data": IMAGES | {"fold": 0}, **source})
    fit(checkpoint, data, policy, "--precision", "float32", "--fold", str(fold))
    assert read_policy(policy).evidence[0].fit.folds == 1


def test_thresholds_have_evidence_in_each_precision_that_the_service_may_choose(
    data: Path, policy: Path, tmp_path: Path
) -> None:
    change = PrecisionChange(
        options=STOCH.in_precision("bfloat16"),
        images=1000, probabilities=0, labels=0, flags=0, data="calibration",
    )  # fmt: skip
    checkpoint = saved(tmp_path, bfloat16=(change,))
    before, text = read_policy(policy).version, policy.read_text()
    printed = fit(checkpoint, data, policy)
    after = read_policy(policy)
    assert after.version == before + 1
    assert [one.options for one in after.evidence] == [STOCH, STOCH.in_precision("bfloat16")]
    for one in after.evidence:
        assert one.fit.routine.hits == one.fit.routine.lesions == 30
        assert [measured.images for measured in one.measured] == [19]
        assert f"In {one.options.precision}:" in printed
    policy.write_text(text)
    fit(checkpoint, data, policy, "--precision", "bfloat16")
    (single,) = read_policy(policy).evidence
    assert single.options.precision == "bfloat16"


@pytest.mark.parametrize("option", ["--archive", "--far"])
@pytest.mark.parametrize("archive", ["ph2", "ph2=absent"])
def test_a_wrong_archive_is_refused_before_any_work(
    checkpoint: Path, data: Path, policy: Path, option: str, archive: str
) -> None:
    done = run("policy", "fit", checkpoint, "--data", data, "--policy", policy, option, archive)
    assert (done.status, option in done.err) == (2, True)
