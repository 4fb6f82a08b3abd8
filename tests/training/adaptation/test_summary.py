"""What a run prints: its data by class and part, its length, and its result."""

from pathlib import Path

import pytest
import torch

from eulerlora.settings import Preprocessing
from eulerlora_client.contract.answers import ClassName
from tests.conftest import random_backbone
from tests.training.synthetic_report import REPORT
from training.adaptation.network import FrozenBackbone
from training.adaptation.train import data_lines, result_lines, run_lines
from training.data.images import ImageParts, LabelledImage
from training.fit.batches import RunLength
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

CLASSES = (ClassName(name="mel", description="melanoma"), ClassName(name="nv", description="nv"))


def images(*labels: int, groups: str = "") -> list[LabelledImage]:
    clusters = groups or [None] * len(labels)
    return [
        LabelledImage(str(index), Path(), label, cluster)
        for index, (label, cluster) in enumerate(zip(labels, clusters, strict=True))
    ]


def test_classes_and_groups_are_counted_by_part() -> None:
    parts = {
        "test": images(0, 1, groups="cd"),
        "train": images(0, 0, 1, groups="aab"),
        "calibration": images(1, groups="e"),
    }
    lines = data_lines(ImageParts("clinic", CLASSES, parts, notes=("a remark",)))
    assert [line.split() for line in lines] == [
        ["data:", "clinic;", "2", "classes"],
        ["class", "train", "calibration", "test"],
        ["mel", "2", "0", "1", "melanoma"],
        ["nv", "1", "1", "1"],
        ["images", "3", "1", "2"],
        ["groups", "2", "1", "2", "no", "group", "is", "in", "two", "parts"],
        ["note:", "a", "remark"],
    ]
    end = lines[1].index("train") + len("train")
    assert [line[end - 1] for line in lines[1:6]] == ["n", "2", "1", "3", "2"]  # right-aligned


def test_a_group_in_two_parts_is_not_denied() -> None:
    parts = {"train": images(0, 1, groups="ab"), "test": images(0, 1, groups="ac")}
    assert "some groups are in two parts" in data_lines(ImageParts("x", CLASSES, parts))[-1]


def test_images_without_groups_have_no_row_of_groups() -> None:
    lines = data_lines(ImageParts("x", CLASSES, {"train": images(0, 1)}))
    assert lines[-1].startswith("images")


def test_a_run_states_device_parameters_and_steps(recipe_file: Path) -> None:
    recipe = read_recipe(recipe_file, AdapterRecipe, ["training.warmup_steps=auto"])
    backbone = random_backbone()
    frozen = FrozenBackbone(backbone, None, {}, Preprocessing(size=32))
    text = "\n".join(run_lines(recipe, frozen, 12_345, RunLength(100, 8, 15), torch.device("cpu")))
    weights = sum(parameter.numel() for parameter in backbone.parameters())
    for part in (
        f"{weights:,} weights, 32 x 32 pixels",
        "2 adapters of rank 4",
        "12,345 parameters; Kmin 2, T 2, sigma 1, 2 sample(s) a step",
        "CPU",
        "195 steps = 15 epochs of 100 images in batches of 8; 19 steps of warm-up",
    ):
        assert part in text
    untrained = run_lines(recipe, frozen, 1, RunLength(100, 8, 0), torch.device("cpu"))
    assert untrained[-1] == "run: no steps; the random head is the result"


@pytest.mark.parametrize(
    ("precision", "native", "line"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("float32", True, "float32"),
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "bfloat16, which is slow: no instructions"),
    ],
)
def test_the_device_line_has_the_precision_of_the_steps(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, precision: str, native: bool, line: str
) -> None:
    missing = None if native else "no instructions"
    for module in ("eulerlora.prediction.precision", "training.adaptation.train"):
        monkeypatch.setattr(f"{module}.missing_bfloat16", lambda _device: missing)
    overrides = ["training.warmup_steps=auto", f"training.precision={precision}"]
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    frozen = FrozenBackbone(random_backbone(), None, {}, Preprocessing(size=32))
    lines = run_lines(recipe, frozen, 1, RunLength(100, 8, 15), torch.device("cpu"))
    assert lines[2].endswith(f"thread(s), {line}")


def test_the_result_is_the_accuracy_with_its_interval_and_the_next_command() -> None:
    out = Path("run")
    lines = result_lines(REPORT, {"initial_accuracy": 0.5, "best_epoch": 3}, out, out / "report")
    accuracy = REPORT.modes[0].metrics["accuracy"]
    assert accuracy is not None
    assert lines[0] == (
        f"test accuracy, det: {accuracy.value:.3f} [{accuracy.low:.3f}, {accuracy.high:.3f}] "
        "(95% interval, 1,234 images)"
    )
    assert "the linear probe that the run started from: 0.500" in lines
    assert "kept: the adapters of epoch 3" in lines
    assert lines[-2:] == [
        "report: run/report/report.md; model card: run/README.md",
        "next: eulerlora serve run, or eulerlora predict run IMAGE --mode stoch",
    ]
