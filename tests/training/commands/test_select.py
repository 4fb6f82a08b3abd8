"""`eulerlora select`: the table, the CSV file and the tasks for Label Studio."""

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save

from eulerlora import EulerLoRA
from tests.program import refusal, run, succeed
from tests.training.conftest import write_training_images
from training.data.copies import image_digests
from training.data.dataset import LabelTable
from training.data.images import OUTSIDE, LabelledImage
from training.data.local_images import read_local_images
from training.evaluation import selection
from training.evaluation.selection import Candidate


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "new pictures"
    (folder / "below").mkdir(parents=True)
    for index, name in enumerate(["a", "b", "c", "below/d", "below/e", "f"]):
        pixels = np.random.default_rng(index).integers(0, 40 + 40 * index, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_the_most_uncertain_pictures_come_first(
    checkpoint_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    done = succeed("select", checkpoint_folder, pictures, "--count", "4", "--no-diversity",
                   "--csv", tmp_path / "next.csv")  # fmt: skip
    files = sorted(pictures.rglob("*.png"))
    predicted = EulerLoRA.load(checkpoint_folder, "cpu").predict(files, "stoch", samples=4)
    order = (-predicted.entropy).argsort()[:4].tolist()
    rows = read_csv(tmp_path / "next.csv")
    assert [row["file"] for row in rows] == [str(files[index]) for index in order]
    assert [row["order"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["label"] for row in rows] == [predicted.labels[index] for index in order]
    assert [float(row["score"]) for row in rows] == pytest.approx(predicted.entropy[order].tolist())
    lines = done.out.splitlines()
    assert all(row["file"] in line for row, line in zip(rows, lines[1:], strict=False))
    assert "4 of 6 pictures by entropy" in done.out


def test_copies_and_pictures_of_the_training_are_left_out(
    checkpoint_copy: Path, pictures: Path, tmp_path: Path
) -> None:
    shutil.copy(pictures / "a.png", pictures / "z.png")
    trained = [LabelledImage("b", pictures / "b.png", OUTSIDE)]
    write_training_images(checkpoint_copy, save({"adapters": image_digests(trained)}))
    done = succeed("select", checkpoint_copy, pictures, "--count", "9", "--csv", tmp_path / "n.csv")
    names = sorted(Path(row["file"]).name for row in read_csv(tmp_path / "n.csv"))
    assert names == ["a.png", "c.png", "d.png", "e.png", "f.png"]
    assert "5 of 5 pictures by entropy; 2 others" in done.out


def test_an_unreadable_picture_is_reported_and_the_others_are_chosen(
    checkpoint_folder: Path, pictures: Path
) -> None:
    (pictures / "a.png").write_bytes(b"broken")
    done = run("select", checkpoint_folder, pictures, "--count", "9")
    assert done.status == 1
    assert "5 of 5 pictures by entropy" in done.out
    assert f"{pictures / 'a.png'}: " in done.err
    assert "1 of 6 pictures could not be read" in done.err


def test_label_studio_gets_tasks_and_its_table_trains(
    checkpoint_folder: Path, pictures: Path, tmp_path: Path
) -> None:
    done = succeed("select", checkpoint_folder, pictures, "--count", "4",
                   "--label-studio", tmp_path / "tasks.json")  # fmt: skip
    model = EulerLoRA.load(checkpoint_folder, "cpu")
    interface = ElementTree.fromstring(done.out.splitlines()[-1])
    image, choices = interface
    assert image.get("value") == "$image"
    assert [choice.get("value") for choice in choices] == list(model.classes)
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert len(tasks) == 4
    exported = ["annotation_id,image,label,order,path"]
    for order, task in enumerate(tasks, start=1):
        assert task["data"]["order"] == order
        url = urlparse(task["data"]["image"])
        assert url.path == "/data/local-files/"
        (served,) = parse_qs(url.query)["d"]  # from the folder that holds the pictures
        file = pictures.parent / served
        (prediction,) = task["predictions"]
        expected = model.predict([file], "stoch", samples=4)
        assert prediction["model_version"] == f"{model.config.name} {model.revision}"
        assert prediction["score"] == pytest.approx(expected.msp.item())
        (result,) = prediction["result"]
        assert result["value"] == {"choices": [expected.labels[0]]}
        assert (result["from_name"], result["type"]) == (choices.get("name"), "choices")
        assert result["to_name"] == choices.get("toName") == image.get("name")
        exported.append(f"7,{task['data']['image']},mel,{order},{task['data']['path']}")
    # Label Studio's CSV export has the keys of the data, and the choice under its from_name.
    (pictures / "labels.csv").write_text("\n".join(exported))
    table = LabelTable(ignore_columns=True)
    labelled = read_local_images(pictures, model.config.classes, table)
    assert len(labelled.images) == 4


def test_an_unfamiliar_picture_has_no_figures_and_no_prediction(
    checkpoint_folder: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfamiliar(*_: Any) -> Iterator[Candidate]:
        yield Candidate(pictures / "a.png", 0.25, np.ones(2), "mel", 0.625, unfamiliar=True)

    monkeypatch.setattr(selection, "read_candidates", unfamiliar)
    tasks, table = tmp_path / "tasks.json", tmp_path / "next.csv"
    done = succeed("select", checkpoint_folder, pictures, "--count", "1", "--csv", table,
                   "--label-studio", tasks)  # fmt: skip
    (row,) = read_csv(table)
    assert (row["label"], row["score"], row["unfamiliar"]) == ("", "", "True")
    assert json.loads(tasks.read_text())[0]["predictions"] == []
    shown = done.out.partition("1 of 1 pictures")[0]
    assert "unfamiliar" in shown
    assert "mel" not in shown
    assert "0.25" not in shown


@pytest.mark.parametrize(
    ("options", "status", "named"),
    [
        (("--count", "0"), 2, "--count"),
        (("--by", "variance"), 2, "--by"),
        (("--mode", "det", "--samples", "4"), 2, "--samples"),
        (("--csv", "a.png"), 2, "a.png"),
        (("--label-studio", "a.png"), 2, "a.png"),
        (("--csv", "b.csv", "--label-studio", "b.csv"), 2, "--label-studio"),
    ],
)
def test_wrong_options_are_refused_and_no_picture_is_overwritten(
    checkpoint_folder: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...], status: int, named: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(pictures)
    before = Path("a.png").read_bytes()
    done = run("select", checkpoint_folder, ".", "--count", "3", *options)
    assert (done.status, named in done.err) == (status, True)
    assert Path("a.png").read_bytes() == before


def test_a_folder_without_a_new_picture_is_refused(checkpoint_copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    Image.new("RGB", (40, 40), (90, 20, 30)).save(folder / "a.png")
    trained = [LabelledImage("a", folder / "a.png", OUTSIDE)]
    write_training_images(checkpoint_copy, save({"adapters": image_digests(trained)}))
    assert "training" in refusal("select", checkpoint_copy, folder, "--count", "3")
