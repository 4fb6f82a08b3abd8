"""`Predictions` as a sequence, a table and a picture."""

import csv
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from matplotlib import pyplot
from PIL import Image

from eulerlora import EulerLoRA
from eulerlora.answer import Predictions
from eulerlora_contract.errors import ImageFilesError
from eulerlora_contract.sampling import Options
from tests.program import succeed

COUNT = 3


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA.load(checkpoint_folder, device="cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{index}.png" for index in range(COUNT)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return paths


@pytest.fixture(scope="module")
def predictions(model: EulerLoRA, files: list[Path]) -> Predictions:
    return model.predict(files, mode="stoch", samples=4)


def test_one_image_is_predicted_as_a_list_of_one(
    model: EulerLoRA, files: list[Path], predictions: Predictions
) -> None:
    with Image.open(files[0]) as image:
        array = np.asarray(image)
        for alone in (files[0], str(files[0]), image, array):
            answer = model.predict(alone, mode="stoch", samples=4)
            assert len(answer) == 1
            torch.testing.assert_close(answer.trajectories[0], predictions.trajectories[0])


def test_a_folder_and_a_pattern_are_predicted_as_their_sorted_images(
    model: EulerLoRA, files: list[Path], predictions: Predictions, tmp_path: Path
) -> None:
    below = tmp_path / "[scans]" / "below"
    below.mkdir(parents=True)
    for file in reversed(files):
        (below / file.name).write_bytes(file.read_bytes())
    (below / "notes.txt").touch()
    expected = [str(below / file.name) for file in files]
    patterns = [str(tmp_path / "**" / "0.*"), tmp_path / "*" / "below" / "[!0]*"]
    whole = (below.parent, str(below), str(tmp_path / "*"), tmp_path / "**" / "below" / "*")
    for given in (*whole, patterns, (tmp_path / "*",)):
        answer = model.predict(given, mode="stoch", samples=4)
        assert [one["file"] for one in answer] == expected
        torch.testing.assert_close(answer.trajectories, predictions.trajectories)
    empty = tmp_path / "empty"
    empty.mkdir()
    for nothing in (empty, tmp_path / "*.webp"):
        for images in (nothing, [files[0], nothing]):
            with pytest.raises(ImageFilesError, match=re.escape(str(nothing))):
                model.predict(images)


def test_predictions_are_a_sequence_of_what_the_service_answers(predictions: Predictions) -> None:
    assert len(predictions) == len(list(predictions)) == COUNT
    first, last = predictions[0], predictions[-1]
    assert last == list(predictions)[COUNT - 1]
    assert first["label"] == predictions.labels[0]
    assert first["probabilities"][first["label"]] == first["msp"] == predictions.msp[0].item()
    assert list(first["probabilities"]) == list(predictions.classes)
    assert predictions[1:] == list(predictions)[1:]
    assert predictions[COUNT:] == []
    for index in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=rf"expected an index .*{COUNT}, got {index}$"):
            predictions[index]


def test_the_columns_are_those_of_the_csv_file(
    checkpoint_folder: Path, files: list[Path], predictions: Predictions, tmp_path: Path
) -> None:
    table = tmp_path / "answers.csv"
    arguments = [checkpoint_folder, *files, "--mode", "stoch", "--samples", 4, "--csv", table]
    succeed("predict", *map(str, arguments))
    with table.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = csv.reader(file)
    columns = predictions.to_dict()
    assert set(columns) == set(header) - {"warnings"}
    assert next(iter(columns)) == header[0] == "file"
    assert columns["file"] == [row[0] for row in rows]
    entropies = [float(row[header.index("entropy")]) for row in rows]
    np.testing.assert_allclose(columns["entropy"], entropies, atol=1e-6)


def test_an_answer_and_its_row_state_the_whole_options(
    checkpoint_folder: Path, files: list[Path], predictions: Predictions
) -> None:
    model = EulerLoRA.load(checkpoint_folder, precision="bfloat16")
    options = Options("stoch", 2, "balanced", 4, "bfloat16")
    answers = model.predict(files, "stoch", 2, sampler="balanced", views=4)
    columns = answers.to_dict()
    for name, value in asdict(options).items():
        assert answers[0][name] == value
        assert columns[name] == [value] * len(files)
    plain = predictions.to_dict()
    absent = {"sampler": "independent", "views": 1, "precision": "float32", "runtime": "torch"}
    assert {name: plain[name][0] for name in absent} == absent
    assert not set(absent) & set(predictions[0])


def test_a_frame_has_a_row_for_each_image(predictions: Predictions) -> None:
    frame = predictions.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["label"]) == list(predictions.labels)
    of_classes = frame[[f"p_{name}" for name in predictions.classes]].to_numpy()
    np.testing.assert_array_equal(of_classes, predictions.probabilities.numpy())


class _Table(HTMLParser):
    """The cells of a table by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_notebook_shows_a_table_without_figures_of_unfamiliar_images(
    predictions: Predictions,
) -> None:
    first = int(predictions.predicted[0])
    classes = tuple("<b>" if i == first else name for i, name in enumerate(predictions.classes))
    shown = replace(predictions, classes=classes)
    scores = predictions.ood_scores | {
        "feature_distance": replace(
            predictions.ood_scores["msp"], flagged=torch.tensor([False, True, False])
        )
    }
    _, first, second, _ = _Table(replace(shown, ood_scores=scores)._repr_html_()).rows
    assert first[1:4] == ["<b>", f"{predictions.msp[0]:.3f}", f"{predictions.entropy[0]:.3f}"]
    assert second[1:4] == ["", "", ""]
    assert "unfamiliar" in second[4]


def test_a_plot_has_a_bar_for_each_class_and_a_point_for_each_trajectory(
    predictions: Predictions,
) -> None:
    axes = predictions.plot(1, classes=2)
    pyplot.close("all")
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(
        sorted(predictions.probabilities[1].tolist())[-2:]
    )
    points = np.concatenate([drawn.get_offsets()[:, 0] for drawn in axes.collections])
    order = predictions.probabilities[1].argsort()[-2:]
    assert sorted(points) == pytest.approx(
        sorted(predictions.trajectories[1][:, order].flatten().tolist())
    )
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        predictions.classes[index] for index in order.tolist()
    ]
