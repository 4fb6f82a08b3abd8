"""Training of whole networks through the program."""

import csv
import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import load_checkpoint
from tests.conftest import random_backbone
from tests.program import run, succeed
from tests.training.conftest import PER_CLASS, set_options, write_recipe

WHOLE = (
    "data.path=set",
    "adapters={adapters = 1, rank = 1, min_rank = 1}",
    "training.samples=1",
    "training.learning_rate=3e-3",
    "evaluation.calibrated=[1]",
    "evaluation.samples=1",
)
EXPLICIT, SNAPSHOT = "{members = 2}", '{members = 2, ensemble = "snapshot"}'


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"))


def trained(recipe: Path, labelled: Path, whole: str, epochs: int, *options: str) -> Path:
    out = recipe.with_name(f"run-{len(list(recipe.parent.iterdir()))}")
    settings = (*WHOLE, f"whole_network={whole}", f"training.epochs={epochs}", *options)
    succeed("train", recipe, "--data", labelled, "--out", out, *set_options(settings))
    return out


@pytest.fixture(scope="module")
def explicit(recipe: Path, labelled: Path) -> Path:
    return trained(recipe, labelled, EXPLICIT, 4)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_checkpoint(folder).network.state_dict()


def test_a_single_network_is_a_checkpoint_whose_backbone_was_trained(
    recipe: Path, labelled: Path, explicit: Path
) -> None:
    out = trained(recipe, labelled, "{}", 4)
    config = load_checkpoint(out).config
    assert config.threshold(config.options()) is not None
    assert "all weights of a Vision Transformer" in (out / "README.md").read_text()
    assert "trained with the head" in (out / "README.md").read_text()
    start, network = random_backbone().state_dict(), load_checkpoint(out).network
    moved = [
        not torch.equal(t, start[n].half().float())
        for n, t in network.backbone.state_dict().items()
    ]
    assert all(moved)
    assert not any(block.up.any() for block in network.blocks)
    images = sorted((labelled / "set" / "test").rglob("*.png"))
    prediction = EulerLoRA.load(out).predict(images)
    right = [
        label == path.parent.name for label, path in zip(prediction.labels, images, strict=True)
    ]
    assert sum(right) / len(right) > 0.8
    # the first member of an explicit ensemble is the single network of the same seed
    for name, tensor in weights(explicit / "members" / "1").items():
        assert torch.equal(tensor, network.state_dict()[name]), name


def test_an_explicit_ensemble_reports_the_mean_of_its_members(
    labelled: Path, explicit: Path
) -> None:
    folders = [explicit / "members" / name for name in ("1", "2")]
    assert any(not torch.equal(t, weights(folders[1])[n]) for n, t in weights(folders[0]).items())
    images = sorted((labelled / "set" / "test").rglob("*.png"))
    members = [EulerLoRA.load(folder).predict(images).probabilities for folder in folders]
    report = json.loads((explicit / "report" / "report.json").read_text())
    assert (report["modes"][0]["trajectories"], report["images"]) == (2, 3 * PER_CLASS["test"])
    assert report["modes"][0]["thresholds"] == {}
    with gzip.open(explicit / "report" / "predictions.csv.gz", "rt") as file:
        rows = {
            row["name"]: [float(row[f"p_{name}"]) for name in ("blue", "green", "red")]
            for row in csv.DictReader(file)
            if (row["set"], row["mode"]) == ("test", "det")
        }
    shown = np.array(
        [rows[next(n for n in rows if n.endswith(f"{p.parent.name}/{p.name}"))] for p in images]
    )
    np.testing.assert_allclose(shown, torch.stack(members).mean(dim=0), atol=1e-6)
    scores = report["modes"][0]["ood"]["other"]["scores"]
    assert scores.keys() == {"msp", "energy", "feature_distance"}


def test_a_snapshot_ensemble_continues_from_one_snapshot_to_the_next(
    recipe: Path, labelled: Path
) -> None:
    still = trained(recipe, labelled, SNAPSHOT, 4, "training.learning_rate=1e-9")
    first, second = (weights(still / "members" / name) for name in ("1", "2"))
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, atol=1e-3, rtol=1e-3)
    moving = trained(recipe, labelled, SNAPSHOT, 4)
    members = [load_checkpoint(moving / "members" / name) for name in ("1", "2")]
    steps = [member.config.provenance["training"]["steps"] for member in members]
    assert steps[0] == steps[1] == 2 * 7  # 54 training images in batches of 8
    name = "heads.weight"
    start, (one, two) = first[name], (member.network.state_dict()[name] for member in members)
    assert (two - one).norm() < (two - start).norm()


def test_an_interrupted_ensemble_keeps_its_finished_members(
    recipe: Path, labelled: Path, explicit: Path
) -> None:
    out = recipe.with_name("resumed")
    shutil.copytree(explicit, out)
    expected = weights(out / "members" / "2")
    shutil.rmtree(out / "members" / "2")
    shutil.rmtree(out / "report")
    before = (out / "members" / "1" / "adapters.safetensors").stat().st_mtime_ns
    settings = (*WHOLE, f"whole_network={EXPLICIT}", "training.epochs=4")
    done = run("train", recipe, "--data", labelled, "--out", out, *set_options(settings))
    assert (done.status, "expected an empty or new folder" in done.err) == (1, True)
    done = succeed(
        "train", recipe, "--data", labelled, "--out", out, "--resume", *set_options(settings)
    )
    assert (out / "members" / "1" / "adapters.safetensors").stat().st_mtime_ns == before
    for name, tensor in weights(out / "members" / "2").items():
        assert torch.equal(tensor, expected[name]), name
