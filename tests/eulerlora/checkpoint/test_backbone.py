"""Backbones: their files, other image sizes, and torchvision's published weights."""

import errno
import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models
from torchvision.models import Weights, WeightsEnum

from eulerlora.checkpoint.backbone import at_image_size, load_backbone, save_backbone
from eulerlora.checkpoint.published_weights import PUBLISHED, from_torchvision, published_backbone
from eulerlora.errors import CheckpointError, SettingsError
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import BackboneSettings, Preprocessing

SETTINGS = BackboneSettings(image_size=24, patch_size=8, layers=3, heads=3, width=12, mlp_width=20)

OTHER = SETTINGS.model_copy(update={"mlp_width": 24})


def test_a_convolutional_stem_embeds_patches_of_the_given_size_and_is_kept_in_a_file(
    tmp_path: Path,
) -> None:
    settings = SETTINGS.model_copy(update={"stem": "convolution"})
    backbone = VisionTransformer(settings).eval()
    kernels = [layer for layer in backbone.conv_proj.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.stride[0] for layer in kernels] == [2, 2, 2, 1]
    assert kernels[-1].out_channels == settings.width
    assert backbone.settings == settings
    images = torch.rand(2, 3, 24, 24)
    assert backbone(images).shape == (2, 12)
    path = tmp_path / "backbone.safetensors"
    save_backbone(path, backbone, {}, torch.float32)
    torch.testing.assert_close(load_backbone(path).backbone.eval()(images), backbone(images))
    larger = at_image_size(backbone, 48)
    assert larger.settings == settings.model_copy(update={"image_size": 48})


def test_the_default_shape_is_torchvisions_vit_b_32_parameter_by_parameter() -> None:
    with torch.device("meta"):
        expected = models.vit_b_32(weights=None)
        expected.heads = nn.Sequential()
        backbone = VisionTransformer(BackboneSettings())
    shapes = {name: tensor.shape for name, tensor in expected.state_dict().items()}
    assert {name: tensor.shape for name, tensor in backbone.state_dict().items()} == shapes
    norms = [m.eps for m in expected.modules() if isinstance(m, nn.LayerNorm)]
    assert [m.eps for m in backbone.modules() if isinstance(m, nn.LayerNorm)] == norms


def test_a_backbone_of_torchvisions_model_has_the_features_of_its_head() -> None:
    model = models.VisionTransformer(24, 8, 1, 3, 12, 20).eval()
    images, head = torch.rand(2, 3, 24, 24), model.heads.head
    nn.init.normal_(head.weight)
    backbone = from_torchvision(model).eval()
    torch.testing.assert_close(head(backbone(images)), model(images))


def test_another_image_size_changes_the_patch_positions_only(
    make_backbone,
) -> None:
    backbone = make_backbone(SETTINGS)
    larger = at_image_size(backbone, 48)
    assert larger.settings == SETTINGS.model_copy(update={"image_size": 48})
    positions = "encoder.pos_embedding"
    ours, theirs = larger.state_dict(), backbone.state_dict()
    grids = [each[positions][0, 1:].T.unflatten(1, (side, side)) for each, side in
             ((ours, 6), (theirs, 3))]  # fmt: skip
    expected = nn.functional.interpolate(
        grids[1][None], size=(6, 6), mode="bicubic", align_corners=True
    )[0]
    torch.testing.assert_close(grids[0], expected)
    assert torch.equal(ours[positions][:, 0], theirs[positions][:, 0])
    for name in theirs.keys() - {positions}:
        assert torch.equal(ours[name], theirs[name])
    assert larger(torch.rand(2, 3, 48, 48)).shape == (2, SETTINGS.width)


def test_an_image_size_that_is_not_a_multiple_of_the_patch_size_is_refused(make_backbone) -> None:
    with pytest.raises(
        SettingsError, match="expected image_size to be a multiple of patch_size=8, got 50"
    ):
        at_image_size(make_backbone(SETTINGS), 50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_backbone_file_stores_weights_shape_and_provenance(
    make_backbone, tmp_path: Path, dtype: torch.dtype
) -> None:
    backbone, provenance = make_backbone(SETTINGS), {"recipe": "größer", "seed": 3, "log": [1.5]}
    path = tmp_path / "backbone.safetensors"
    save_backbone(path, backbone, provenance, dtype)
    actual = load_backbone(path)
    assert actual.provenance == provenance
    assert actual.backbone.settings == SETTINGS
    for name, tensor in actual.backbone.state_dict().items():
        assert torch.equal(tensor, backbone.state_dict()[name].to(dtype).float())


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {"provenance": "{}"},
        {"settings": SETTINGS.model_dump_json()},
        {"settings": "{", "provenance": "{}"},
        {"settings": '{"heads": 7}', "provenance": "{}"},
        {"settings": '{"layers": 1000000000}', "provenance": "{}"},
        {"settings": '{"depth": 7}', "provenance": "{}"},
        {"settings": SETTINGS.model_dump_json(), "provenance": "{"},
        {"settings": OTHER.model_dump_json(), "provenance": "{}"},
    ],
)
def test_a_file_without_the_metadata_of_its_backbone_is_refused(
    make_backbone, tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    path = tmp_path / "backbone.safetensors"
    save_file(make_backbone(SETTINGS).state_dict(), path, metadata=metadata)
    with pytest.raises(CheckpointError, match=r"metadata|shape") as caught:
        load_backbone(path)
    assert caught.value.path == path


def test_a_backbone_file_stores_its_preprocessing(make_backbone, tmp_path: Path) -> None:
    path, backbone = tmp_path / "backbone.safetensors", make_backbone(SETTINGS)
    preprocessing = Preprocessing(
        size=24, resize="crop", shorter_side=28, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)
    )
    save_backbone(path, backbone, {}, torch.float32, preprocessing)
    assert load_backbone(path).preprocessing == preprocessing
    metadata = {"settings": SETTINGS.model_dump_json(), "provenance": "{}"}
    save_file(backbone.state_dict(), path, metadata=metadata)
    assert load_backbone(path).preprocessing == Preprocessing(size=24)


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
