"""Torchvision's published weights, from its cache, a file or a download."""

import errno
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models import Weights, WeightsEnum

from eulerlora.checkpoint.published_weights import PUBLISHED, published_backbone
from eulerlora.errors import EulerLoRAError, SettingsError


def test_all_weights_of_torchvisions_five_families_are_listed() -> None:
    families = ("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14")
    expected = {str(weights) for name in families for weights in models.get_model_weights(name)}
    assert PUBLISHED.keys() == expected
    for name, (_, weights) in PUBLISHED.items():
        assert models.get_weight(name) is weights


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_are_listed_with_their_architecture(name: str) -> None:
    builder, weights = PUBLISHED[name]
    with torch.device("meta"):
        model = builder(image_size=weights.meta["min_size"][0])
    assert sum(p.numel() for p in model.parameters()) == weights.meta["num_params"]
    assert "weights" in inspect.signature(builder).parameters


@pytest.mark.parametrize("name", ["", "ViT_B_32_Weights", "ResNet50_Weights.IMAGENET1K_V1"])
def test_an_unknown_published_name_is_a_settings_error_with_the_known_names(name: str) -> None:
    with pytest.raises(SettingsError, match=r"ViT_B_32_Weights\.IMAGENET1K_V1") as caught:
        published_backbone(name)
    assert repr(name) in str(caught.value)


def test_published_weights_in_torchs_cache_are_loaded_without_a_network(tiny_published) -> None:
    backbone = published_backbone(tiny_published.name)
    state = backbone.state_dict()
    names = {k for k in tiny_published.state if not k.startswith("heads.")}
    assert state.keys() == names
    assert all(torch.equal(state[name], tiny_published.state[name]) for name in names)


def test_a_given_file_replaces_the_download(tiny_published, tmp_path: Path) -> None:
    file = tiny_published.file.rename(tmp_path / "from elsewhere.pth")
    for given in (file, None):  # it is in torch's cache from then on
        actual = published_backbone(tiny_published.name, given)
        assert torch.equal(actual.class_token, tiny_published.state["class_token"])
    assert [path.name for path in tiny_published.file.parent.iterdir()] == [
        tiny_published.file.name
    ]


def test_a_given_file_with_another_hash_is_refused_and_not_copied(
    tiny_published, tmp_path: Path
) -> None:
    file = tiny_published.file.rename(tmp_path / "other.pth")
    torch.save(tiny_published.state | {"class_token": torch.ones(1, 1, 16)}, file)
    for wrong, reason in (
        (file, "expected a SHA-256 that begins"),
        (tmp_path / "absent.pth", "cannot be read"),
    ):
        with pytest.raises(SettingsError, match=f"{wrong.name}.*{reason}"):
            published_backbone(tiny_published.name, wrong)
    assert not tiny_published.file.exists()


def test_unavailable_weights_are_an_error_with_url_hash_and_path(tiny_published) -> None:
    tiny_published.file.unlink()
    with pytest.raises(SettingsError) as caught:
        published_backbone(tiny_published.name)
    digits = tiny_published.file.stem.rpartition("-")[2]
    for part in (
        tiny_published.source.as_uri(),
        f"SHA-256 begins {digits}",
        str(tiny_published.file),
        "--set backbone.file=PATH",
    ):
        assert part in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_download_that_fails_is_an_error_with_the_reason_of_the_system(
    tiny_published, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_published.file.unlink()

    def fill_the_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.hub, "download_url_to_file", fill_the_disk)
    with pytest.raises(SettingsError, match=r"cannot be downloaded \(No space left on device\); "):
        published_backbone(tiny_published.name)


def test_a_published_file_with_code_is_refused_and_the_code_not_run(
    tiny_published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the file contains its hash."""
    trace = tmp_path / "trace"

    class Touch:
        def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
            return (Path.touch, (trace,))

    torch.save({**tiny_published.state, "payload": Touch()}, tiny_published.file)
    digest = hashlib.sha256(tiny_published.file.read_bytes()).hexdigest()
    file = tiny_published.file.rename(tiny_published.file.with_name(f"tiny-{digest[:8]}.pth"))
    weights = Weights(url=file.as_uri(), transforms=nn.Identity, meta={"min_size": (32, 32)})
    builder, _ = PUBLISHED[tiny_published.name]
    family = WeightsEnum("HostileWeights", {"V1": weights})
    monkeypatch.setitem(PUBLISHED, tiny_published.name, (builder, family["V1"]))
    with pytest.raises(Exception, match=r"(?i)weights"):
        published_backbone(tiny_published.name)
    assert not trace.exists()


def test_a_cached_file_with_another_hash_is_refused(
    tiny_published,
) -> None:
    """torch.hub does not verify files in its cache."""
    torch.save(tiny_published.state | {"class_token": torch.ones(1, 1, 16)}, tiny_published.file)
    with pytest.raises(EulerLoRAError, match=r"hash|SHA-256"):
        published_backbone(tiny_published.name)
