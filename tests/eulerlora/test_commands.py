"""eulerlora.commands: `eulerlora predict`, and the wait policy of OpenMP."""

import csv
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from eulerlora import EulerLoRA, commands
from eulerlora.checkpoint.files import read_config
from eulerlora.commands import (
    configure_openmp,
)
from eulerlora.scores.prediction_sets import PredictionSetCalibration
from eulerlora_contract.sampling import RUNTIMES
from tests.checkpoint_files import write_config
from tests.conftest import DET, needs_openvino
from tests.icc_profiles import DISPLAY_P3, rgb_profile
from tests.program import run

AUTO = ("--mode", "stoch", "--samples", "auto")

EXAMPLE = Path(__file__).parents[2] / "docs/images/example-lesion.jpg"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    (folder / "below").mkdir(parents=True)
    for index, name in enumerate(["a.png", "b.jpg", "below/c.webp"]):
        Image.new("RGB", (40, 50), (80 * index, 100, 200)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA.load(checkpoint_folder, "cpu")


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_json_lines_are_the_model_s_predictions(
    checkpoint_folder: Path, images: Path, model: EulerLoRA
) -> None:
    done = run("predict", checkpoint_folder, images, "--mode", "stoch", "--seed", "7", "--json")
    assert done.status == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [Path(line["file"]).name for line in lines] == ["a.png", "b.jpg", "c.webp"]
    expected = model.predict([line["file"] for line in lines], "stoch", samples=4, seed=7)
    for index, line in enumerate(lines):
        assert list(line["probabilities"]) == list(model.classes)
        assert list(line["probabilities"].values()) == pytest.approx(
            expected.probabilities[index].tolist()
        )
        assert line["label"] == expected.labels[index]
        assert line["ood"] == bool(expected.ood[index])


def test_a_quoted_pattern_stands_for_the_images_that_it_matches(
    checkpoint_folder: Path, images: Path
) -> None:
    done = run("predict", checkpoint_folder, images / "[ab].*", images / "below", "--json")
    assert done.status == 0, done.err
    names = [Path(json.loads(line)["file"]).name for line in done.out.splitlines()]
    assert names == ["a.png", "b.jpg", "c.webp"]
    for pattern, status in (("*.tif", 1), ("a.gif", 2)):
        done = run("predict", checkpoint_folder, images / pattern, images / "a.png")
        assert (done.status, pattern in done.err, done.out) == (status, True, "")


@needs_openvino
def test_an_answer_names_the_chosen_runtime_if_it_is_not_torch(
    checkpoint_folder: Path, images: Path
) -> None:
    command = "predict", checkpoint_folder, images / "a.png", "--json", "--runtime"
    answers = []
    for runtime in RUNTIMES:
        done = run(*command, runtime)
        assert done.status == 0, done.err
        answers.append(json.loads(done.out))
    by_torch, by_openvino = answers
    assert "runtime" not in by_torch
    assert by_openvino["runtime"] == "openvino"
    assert by_openvino["probabilities"] == pytest.approx(by_torch["probabilities"], abs=1e-5)


def test_the_embedded_checkpoint_has_a_name_in_place_of_a_path(images: Path) -> None:
    done = run("predict", "default", images / "a.png", "--json")
    assert done.status == 0, done.err
    assert list(json.loads(done.out)["probabilities"]) == list(EulerLoRA.default("cpu").classes)
    assert run("predict", "./default", images / "a.png").status == 1  # there is no such folder


def test_auto_reports_the_numbers_of_samples_and_of_passes(
    checkpoint_folder: Path, images: Path, tmp_path: Path, model: EulerLoRA
) -> None:
    done = run("predict", checkpoint_folder, images, *AUTO, "--json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    expected = model.predict([line["file"] for line in lines], "stoch", samples="auto")
    assert [line["samples"] for line in lines] == expected.samples.tolist()
    assert [line["rows"] for line in lines] == expected.rows.tolist()
    assert run("predict", checkpoint_folder, images, *AUTO, "--csv", tmp_path / "a.csv").status == 0
    rows = read_csv(tmp_path / "a.csv")
    assert [int(row["samples"]) for row in rows] == expected.samples.tolist()
    assert [int(row["rows"]) for row in rows] == expected.rows.tolist()
    for row in rows:
        assert sum(float(row[f"p_{name}"]) for name in model.classes) == pytest.approx(1)


def test_an_unreadable_file_is_reported_and_the_others_are_predicted(
    checkpoint_folder: Path, images: Path
) -> None:
    (images / "b.jpg").write_bytes(b"broken")
    done = run("predict", checkpoint_folder, images, "--json")
    assert done.status == 1
    names = [Path(json.loads(line)["file"]).name for line in done.out.splitlines()]
    assert names == ["a.png", "c.webp"]
    assert f"{images / 'b.jpg'}: " in done.err
    assert "1 of 3 images could not be read" in done.err


@pytest.mark.parametrize(("mode", "samples"), [("det", None), ("stoch", 4), ("stoch", "auto")])
def test_groups_of_files_change_no_prediction(
    checkpoint_folder: Path,
    model: EulerLoRA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    samples: int | str | None,
) -> None:
    monkeypatch.setattr("eulerlora.commands._BATCH_FILES", 3)
    files = [tmp_path / f"{index}.png" for index in range(7)]
    for index, file in enumerate(files):
        Image.effect_noise((36, 40), 20 + 30 * index).convert("RGB").save(file)
    (tmp_path / "bad.png").write_bytes(b"broken")
    files.insert(4, tmp_path / "bad.png")
    options = ("--mode", mode, *(() if samples is None else ("--samples", str(samples))))
    done = run("predict", checkpoint_folder, *files, *options, "--json")
    assert "1 of 8 images could not be read" in done.err
    assert done.err.count(f"{tmp_path / 'bad.png'}: ") == 1
    # the checkpoint has no threshold for samples="auto"
    assert done.err.count("warning: ") == (samples == "auto")
    answers = [json.loads(line) for line in done.out.splitlines()]
    readable = [file for file in files if file.name != "bad.png"]
    assert [answer["file"] for answer in answers] == list(map(str, readable))
    for file, answer in zip(readable, answers, strict=True):
        alone = model.predict([file], mode, samples)
        assert list(answer["probabilities"].values()) == pytest.approx(
            alone.probabilities[0].tolist(), abs=1e-5
        )
        assert answer["samples"] == int(alone.samples)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(((*AUTO[:-1], value), "--samples") for value in ("0", "65", "4.0", "automatic")),
        (("--samples", "4"), "--mode stoch"),
        (("--json", "--csv", "x.csv"), "got both"),
        (("--mode", "both"), "both"),
        *(
            (("--coverage", v), "--coverage")
            for v in ("0", "1", "1.5", "nan", "-0.1", "inf", "90%")
        ),
    ],
)
def test_wrong_options_are_wrong_usage(
    checkpoint_folder: Path, images: Path, options: tuple[str, ...], named: str
) -> None:
    done = run("predict", checkpoint_folder, images, *options)
    assert (done.status, named in done.err) == (2, True)


def test_a_picture_without_a_checkpoint_is_answered_with_the_embedded_one(images: Path) -> None:
    done = run("predict", images / "a.png")
    assert done.status == 2
    assert "predict default" in done.err


@pytest.mark.parametrize("alias", ["itself", "symbolic link", "hard link", "checkpoint"])
def test_an_input_file_is_never_overwritten(
    checkpoint_copy: Path, images: Path, tmp_path: Path, alias: str
) -> None:
    file = checkpoint_copy / "config.json" if alias == "checkpoint" else images / "a.png"
    content, output = file.read_bytes(), tmp_path / "output.csv"
    if alias == "hard link":
        os.link(file, output)
    elif alias == "symbolic link":
        output.symlink_to(file)
    else:
        output = file
    done = run("predict", checkpoint_copy, images, "--csv", output)
    assert done.status == 2
    assert file.read_bytes() == content


def test_a_run_that_fails_leaves_the_older_csv_file(
    checkpoint_copy: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "predictions.csv"
    table.write_text("older")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EulerLoRA, "predict", interrupt)
    assert run("predict", checkpoint_copy, images, "--csv", table).status == 1
    assert table.read_text() == "older"
    assert not list(tmp_path.glob(".*"))


def test_an_unfamiliar_image_has_its_figures_in_the_json_only(tmp_path: Path) -> None:
    noise = tmp_path / "noise.png"
    Image.effect_noise((200, 150), 90).convert("RGB").save(noise)
    files = ("predict", "default", EXAMPLE, noise)
    answers = [json.loads(line) for line in run(*files, "--json").out.splitlines()]
    assert [answer["unfamiliar"] for answer in answers] == [False, True]
    assert all(answer["label"] and answer["msp"] for answer in answers)
    assert run(*files, "--csv", tmp_path / "a.csv").status == 0
    first, second = read_csv(tmp_path / "a.csv")
    shown = {"label", "msp", "entropy", *(f"p_{name}" for name in answers[0]["probabilities"])}
    hidden = shown | {"expected_entropy", "mutual_information"}
    assert {name for name in first if first[name] and not second[name]} == hidden
    assert second["unfamiliar"] == "True"
    assert run(*files).out.splitlines()[1] == f"{noise}: unfamiliar"


def test_control_characters_of_names_never_reach_the_terminal(
    checkpoint_folder: Path, images: Path
) -> None:
    for name in ("\x1b[2J\x07.png", "\x9b1m\u202e.jpg"):
        (images / name).write_bytes((images / "a.png").read_bytes())
    (images / "\x1b]0;title\x07.webp").write_bytes(b"broken")
    for format_options in ((), ("--json",)):
        done = run("predict", checkpoint_folder, images, *format_options)
        assert done.status == 1
        assert len(done.out.splitlines()) == 5
        assert all(line.isprintable() for line in (done.out + done.err).splitlines())
    assert "\\x1b[2J\\x07.png: " in run("predict", checkpoint_folder, images).out
    assert "\\x1b]0;title\\x07.webp: " in done.err


def test_files_of_other_kinds_and_hidden_folders_are_named_and_not_predicted(
    checkpoint_folder: Path, images: Path
) -> None:
    (images / ".thumbnails").mkdir()
    first = next(images.glob("*.png"))
    shutil.copy(first, images / ".thumbnails" / "a.png")
    shutil.copy(first, images / "b.JPE")
    Image.new("RGB", (40, 50)).save(images / "c.bmp")
    done = run("predict", checkpoint_folder, images)
    assert (done.status, len(done.out.splitlines())) == (0, 4)
    assert "c.bmp" not in done.out and "eulerlora convert" in done.err
    assert ".thumbnails: 1" in done.err


def test_a_pipe_or_a_folder_among_the_images_is_reported_and_not_read(
    checkpoint_folder: Path, images: Path
) -> None:
    os.mkfifo(images / "pipe.png")
    done = run("predict", checkpoint_folder, images)
    assert (done.status, len(done.out.splitlines())) == (1, 3)
    assert "pipe.png: expected a regular file" in done.err


def test_conversions_are_in_the_outputs_and_an_ignored_profile_on_stderr(
    checkpoint_folder: Path, images: Path, tmp_path: Path
) -> None:
    Image.new("RGB", (40, 50), (200, 100, 50)).save(
        images / "a.png", icc_profile=rgb_profile(DISPLAY_P3)
    )
    Image.new("RGB", (40, 50), (200, 100, 50)).save(images / "b.jpg", icc_profile=b"broken")
    done = run("predict", checkpoint_folder, images, "--json")
    assert done.status == 0
    warnings = [json.loads(line)["warnings"] for line in done.out.splitlines()]
    codes = [[warning["code"] for warning in each] for each in warnings]
    assert codes == [["converted_to_srgb"], ["profile_ignored"], []]
    (warning,) = done.err.splitlines()
    assert warning.endswith("b.jpg: the colour profile is ignored: it is damaged")
    assert run("predict", checkpoint_folder, images, "--csv", tmp_path / "a.csv").status == 0
    assert [row["warnings"] for row in read_csv(tmp_path / "a.csv")] == [
        "; ".join(warning["message"] for warning in each) for each in warnings
    ]


@pytest.fixture
def with_sets(checkpoint_copy: Path) -> Path:
    """A checkpoint with prediction sets for det; nv is in every set."""
    calibration = {
        "coverage": 0.9, "options": DET, "thresholds": (0.5, 0.7, 1.0), "unit": "lesion",
        "units": (20, 30, 4), "confidences": (0.88, 0.96, 1.0),
        "data": "HAM10000, calibration part", "data_sha256": "0" * 64,
    }  # fmt: skip
    sets = (PredictionSetCalibration.model_validate(calibration),)
    config = read_config(checkpoint_copy).model_copy(update={"prediction_sets": sets})
    write_config(checkpoint_copy, config)
    return checkpoint_copy


def test_prediction_sets_are_in_every_format(with_sets: Path, images: Path, tmp_path: Path) -> None:
    files = sorted(images.glob("*.*"))
    expected = EulerLoRA.load(with_sets, "cpu").predict(files, coverage=0.9)
    labels = expected.prediction_sets.labels
    thresholds = torch.tensor([0.5, 0.7, 1.0])
    included = expected.prediction_sets.included
    assert torch.equal(included, 1 - expected.probabilities <= thresholds)
    arguments = ("predict", with_sets, *files, "--coverage", "0.9")
    lines = [json.loads(line) for line in run(*arguments, "--json").out.splitlines()]
    assert [tuple(line["prediction_set"]["labels"]) for line in lines] == list(labels)
    texts = run(*arguments).out.splitlines()
    assert [text.endswith(f"{{{', '.join(names)}}}") for text, names in zip(
        texts, labels, strict=True
    )] == [True] * len(files)  # fmt: skip
    assert run(*arguments, "--csv", tmp_path / "a.csv").status == 0
    rows = read_csv(tmp_path / "a.csv")
    assert [row["prediction_set"] for row in rows] == ["; ".join(names) for names in labels]


ACTIVE = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "10000"}
THREADS = "OMP_NUM_THREADS"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment without OpenMP's variables; restored after the test."""
    for name in (*ACTIVE, THREADS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.skipif(sys.platform != "linux", reason="the policy is set on Linux only")
@pytest.mark.parametrize("user", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}])
def test_the_policy_is_set_unless_the_user_has_set_one(
    environment: None, monkeypatch: pytest.MonkeyPatch, user: dict[str, str]
) -> None:
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    configure_openmp()
    assert {name: os.environ[name] for name in ACTIVE if name in os.environ} == (user or ACTIVE)


@pytest.mark.skipif(sys.platform != "linux", reason="quotas are of Linux")
@pytest.mark.parametrize(
    ("quota", "user", "threads"), [(3, None, "3"), (3, "7", "7"), (16, None, None)]
)
def test_the_number_of_threads_follows_a_quota_unless_the_user_has_set_it(
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
    quota: int,
    user: str | None,
    threads: str | None,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(commands, "available_cpus", lambda: quota)
    if user is not None:
        monkeypatch.setenv(THREADS, user)
    configure_openmp()
    assert os.environ.get(THREADS) == threads
