"""The backbone of a recipe: `auto` and the embedded one."""

from pathlib import Path

import pytest
import torch

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, load_checkpoint
from eulerlora.errors import SettingsError
from tests.conftest import random_backbone
from training.adaptation import network as backbone
from training.adaptation.network import DOWNLOADED, EMBEDDED, available_source, read_backbone
from training.recipe.schema import BackboneSource


def unavailable(name: str, file: Path | None = None) -> None:
    raise SettingsError(f"{name} cannot be downloaded")


def test_without_weights_auto_is_the_embedded_backbone_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backbone, "published_backbone", unavailable)
    assert available_source(BackboneSource()) == BackboneSource(weights=EMBEDDED)
    message = capsys.readouterr().err
    assert "using the embedded backbone" in message
    assert f"{DOWNLOADED} cannot be downloaded" in message
    assert len(message.splitlines()) == 1


def test_with_weights_auto_is_the_published_backbone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backbone, "published_backbone", lambda _name: random_backbone())
    assert available_source(BackboneSource()) == BackboneSource(weights=DOWNLOADED)
    assert capsys.readouterr() == ("", "")
    sized = BackboneSource(image_size=32)
    assert available_source(sized) == BackboneSource(weights=EMBEDDED, image_size=32)


def test_other_sources_are_not_replaced() -> None:
    for weights in (EMBEDDED, DOWNLOADED, "absent.safetensors"):
        source = BackboneSource(weights=weights)
        assert available_source(source) is source


def test_the_embedded_backbone_is_that_of_the_packaged_checkpoint(tmp_path: Path) -> None:
    frozen = read_backbone(BackboneSource(weights=EMBEDDED), tmp_path, torch.float16)
    packaged = load_checkpoint(DEFAULT_CHECKPOINT).network.backbone
    assert frozen.published is None
    for name, tensor in packaged.state_dict().items():
        assert torch.equal(frozen.backbone.state_dict()[name], tensor), name
