"""eulerlora.commands: `eulerlora predict`."""

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from eulerlora import EulerLoRA
from tests.program import run


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with three pictures, one of them in a folder below."""
    folder = tmp_path / "images"
    (folder / "below").mkdir(parents=True)
    for index, name in enumerate(["a.png", "b.jpg", "below/c.webp"]):
        Image.new("RGB", (40, 50), (80 * index, 100, 200)).save(folder / name)
    return folder


def test_json_lines_are_the_model_s_answers(checkpoint_folder: Path, images: Path) -> None:
    done = run("predict", checkpoint_folder, images, "--mode", "stoch", "--seed", "7", "--json")
    assert done.status == 0, done.err
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert [Path(each["file"]).name for each in answers] == ["a.png", "b.jpg", "c.webp"]
    model = EulerLoRA.load(checkpoint_folder)
    expected = model.predict([each["file"] for each in answers], "stoch", samples=4, seed=7)
    for index, answer in enumerate(answers):
        assert list(answer["probabilities"]) == list(model.classes)
        assert list(answer["probabilities"].values()) == pytest.approx(
            expected.probabilities[index].tolist()
        )
        assert answer["label"] == expected.labels[index]
        assert expected.ood is not None
        assert answer["ood"] == bool(expected.ood[index])


def test_auto_tells_how_many_samples_it_took_and_its_errors(
    checkpoint_folder: Path, images: Path, tmp_path: Path
) -> None:
    asked = ("predict", checkpoint_folder, images, "--mode", "stoch", "--samples", "auto")
    answers = [json.loads(line) for line in run(*asked, "--json").out.splitlines()]
    model = EulerLoRA.load(checkpoint_folder)
    expected = model.predict([each["file"] for each in answers], "stoch", samples="auto")
    assert [each["samples"] for each in answers] == expected.samples.tolist()
    errors = expected.standard_errors
    assert errors is not None
    for name, found in (("msp", errors.msp), ("entropy", errors.entropy)):
        told = [each[f"{name}_standard_error"] for each in answers]
        assert told == pytest.approx(found.tolist(), abs=1e-6)
    assert run(*asked, "--csv", tmp_path / "rows.csv").status == 0
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert all(float(row["entropy_standard_error"]) >= 0 for row in csv.DictReader(file))
    for wrong in ("Auto", "0", "65", "4.0"):
        assert run(*asked[:-1], wrong).status == 2


def test_csv_has_one_row_an_image(checkpoint_folder: Path, images: Path, tmp_path: Path) -> None:
    table = tmp_path / "answers.csv"
    assert run("predict", checkpoint_folder, images, "--csv", table).status == 0
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    for row in rows:
        assert sum(float(row[f"p_{name}"]) for name in ("bkl", "mel", "nv")) == pytest.approx(1)


def test_plain_lines_name_file_label_and_certainty(checkpoint_folder: Path, images: Path) -> None:
    done = run("predict", checkpoint_folder, images / "a.png")
    label = EulerLoRA.load(checkpoint_folder).predict([images / "a.png"]).labels[0]
    assert done.out.startswith(f"{images / 'a.png'}: {label} 0.")


def test_a_broken_file_is_reported_and_the_others_are_answered(
    checkpoint_folder: Path, images: Path
) -> None:
    (images / "b.jpg").write_bytes(b"broken")
    done = run("predict", checkpoint_folder, images, "--json")
    assert done.status == 1
    assert len(done.out.splitlines()) == 2
    assert "b.jpg" in done.err
    assert "1 of the images" in done.err


@pytest.mark.parametrize(
    "wrong", [["--samples", "4"], ["--json", "--csv", "x.csv"], ["--mode", "both"]]
)
def test_options_that_contradict_are_wrong_usage(
    checkpoint_folder: Path, images: Path, wrong: list[str]
) -> None:
    assert run("predict", checkpoint_folder, images, *wrong).status == 2


def test_a_folder_without_images_is_an_error(checkpoint_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("predict", checkpoint_folder, tmp_path / "empty")
    assert done.status == 1
    assert "empty" in done.err
