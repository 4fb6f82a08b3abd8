"""The command `eulerlora backbone import`: folders, and the Hub out of reach."""

from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint.hub import Repository
from eulerlora.errors import HubError
from eulerlora.settings import Preprocessing
from tests.eulerlora.backbones.sources import of_timm
from tests.program import run
from training.adaptation.network import read_backbone
from training.recipe.schema import BackboneSource


def test_an_imported_backbone_is_one_that_training_reads(tmp_path: Path) -> None:
    of_timm(tmp_path / "source")
    done = run("backbone", "import", tmp_path / "source", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    path = tmp_path / "out" / "backbone.safetensors"
    assert f"--set backbone.weights={path}" in done.out
    assert "licence: not stated by the source" in done.out
    for size, shorter_side in ((None, 35), (64, 70)):
        source = BackboneSource(weights=str(path), image_size=size)
        frozen = read_backbone(source, tmp_path, torch.float16)
        assert frozen.preprocessing == Preprocessing(
            size=size or 32, resize="crop", shorter_side=shorter_side,
            interpolation="bicubic-antialias", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25),
        )  # fmt: skip
        assert frozen.backbone.settings.image_size == frozen.preprocessing.size
        assert frozen.provenance["imported"]["architecture"] == "timm"


def test_the_output_folder_must_be_new(tmp_path: Path) -> None:
    of_timm(tmp_path / "source")
    done = run("backbone", "import", tmp_path / "source", "--out", tmp_path / "source")
    assert done.status == 1
    assert "expected an empty or new folder" in done.err


def test_a_repository_without_a_network_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    done = run("backbone", "import", "org/name@main", "--out", tmp_path / "out")
    assert done.status == 1
    assert "hf://org/name@main: cannot be reached" in done.err
    assert len(done.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_repository_has_an_organisation_a_name_and_a_revision() -> None:
    assert Repository.of_url("hf://org/name@v1.0") == Repository("org/name", "v1.0")
    assert Repository.of_url("org/name") == Repository("org/name")
    assert str(Repository("org/name", "v1.0")) == "hf://org/name@v1.0"
    for name in ("name", "a/b/c", "hf://org/na me", ""):
        with pytest.raises(HubError, match="expected a repository ORGANISATION/NAME"):
            Repository.of_url(name)
