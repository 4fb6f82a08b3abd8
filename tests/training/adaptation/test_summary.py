"""What a run prints: its data by class and part, its length, and its result."""

from pathlib import Path

import pytest
import torch

from eulerlora.precision import faster_precision
from eulerlora_contract.checkpoints import ClassName
from training.adaptation.network import read_backbone
from training.adaptation.summary import basis_lines, data_lines, loss_lines, run_lines
from training.data.images import ImageParts, LabelledImage
from training.optimisation.batches import RunLength
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
    lines = data_lines(ImageParts("clinic", CLASSES, parts))
    assert [line.split() for line in lines] == [
        ["data:", "clinic;", "2", "classes"],
        ["class", "train", "calibration", "test"],
        ["mel", "2", "0", "1", "melanoma"],
        ["nv", "1", "1", "1"],
        ["images", "3", "1", "2"],
        ["groups", "2", "1", "2", "no", "group", "is", "in", "two", "parts"],
    ]
    end = lines[1].index("train") + len("train")
    assert [line[end - 1] for line in lines[1:6]] == ["n", "2", "1", "3", "2"]  # right-aligned


def test_a_group_in_two_parts_is_not_denied() -> None:
    parts = {"train": images(0, 1, groups="ab"), "test": images(0, 1, groups="ac")}
    assert "some groups are in two parts" in data_lines(ImageParts("x", CLASSES, parts))[-1]


@pytest.mark.parametrize(
    ("precision", "native", "line"),
    [
        ("auto", True, "bfloat16: two blocks take 1.00 ms in bfloat16 and 2.00 ms in float32"),
        ("auto", False, "float32: no instructions"),
        ("float32", True, "float32"),
        ("bfloat16", True, "bfloat16"),
        ("bfloat16", False, "bfloat16, which is slow: no instructions"),
    ],
)
def test_the_device_line_has_the_precision_of_the_steps(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch, precision: str, native: bool, line: str
) -> None:
    missing = None if native else "no instructions"
    for module in ("eulerlora.precision", "training.adaptation.summary"):
        monkeypatch.setattr(f"{module}.missing_bfloat16", lambda _device: missing)
    monkeypatch.setattr("eulerlora.precision._block_times_ms", lambda *_: (2.0, 1.0))
    faster_precision.cache_clear()
    overrides = ["training.warmup_steps=auto", f"training.precision={precision}"]
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    frozen = read_backbone(recipe.backbone, recipe_file.parent, torch.float32)
    lines = run_lines(recipe, frozen, 1, RunLength(100, 8, 15), torch.device("cpu"))
    assert lines[2].endswith(f", 1 thread, {line}")


@pytest.mark.parametrize(
    ("losses", "says"),
    [([2.3, 2.2, 2.3], True), ([2.3, 2.2], False), ([2.3], False), (None, False)],
)
def test_a_run_whose_loss_does_not_fall_names_rate_and_gain(
    recipe_file: Path, losses: list[float] | None, says: bool
) -> None:
    overrides = ["training.learning_rate=0.003", "adapters.init_gain=7"]
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    result = {} if losses is None else {"loss_by_epoch": losses}
    lines = loss_lines(recipe, {"steps": 9, **result})
    assert bool(lines) == says
    assert all("0.003" in line and "init_gain, now 7" in line for line in lines)


def test_figures_rest_on_the_groups_of_the_rarest_class() -> None:
    parts = {
        "train": images(0, 1),
        "calibration": images(*[0] * 8, *[1] * 3, groups="aabbccdd" + "aaf"),
        "test": images(*[0] * 99, 1, groups="ab" * 50),
    }
    rows = [line.split("  ") for line in basis_lines(ImageParts("x", CLASSES, parts))]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell.strip()] for row in rows[1:]}
    assert cells["accuracy and ECE"] == ["100 test images"]
    assert cells["results by class"][0].startswith("1 test groups of the rarest class")
    assert cells["OOD thresholds"] == ["6 calibration groups", "too few: 59 are needed"]
    assert cells["prediction sets of 0.9"] == [
        "2 calibration groups of nv",
        "too few: 9 are needed",
    ]
    assert cells["samples=auto"] == ["11 calibration images", "too few: 100 are needed"]
