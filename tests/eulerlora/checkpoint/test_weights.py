"""Files of tensors and backbones, other image sizes, and torchvision's published weights."""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor, nn
from torchvision import models
from torchvision.models import Weights, WeightsEnum

from eulerlora.checkpoint.weights import (
    at_image_size,
    from_torchvision,
    load_backbone,
    published_backbone,
    save_backbone,
    tensors_sha256,
)
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_contract.errors import CheckpointError, SettingsError

Tensors = dict[str, Tensor]
SETTINGS = BackboneSettings(image_size=24, patch_size=8, layers=3, heads=3, width=12, mlp_width=20)
NORM, BLOCK = "encoder.ln.bias", "encoder.layers.encoder_layer_0"


@pytest.fixture
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(3, 4, generator=generator),
        "a": torch.randn(5, generator=generator),
        "scalar": torch.tensor(2.5),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_backbone(path)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_transposed_and_differentiable_tensors_can_be_written(make_backbone, path: Path) -> None:
    backbone = make_backbone(SETTINGS).requires_grad_(True)
    parameter = backbone.get_parameter(f"{BLOCK}.self_attention.out_proj.weight")
    parameter.data = parameter.data.T
    save_backbone(path, backbone, {}, torch.float32)
    read = load_backbone(path).backbone.state_dict()
    assert all(torch.equal(read[name], kept) for name, kept in backbone.state_dict().items())


def test_a_digest_does_not_depend_on_order_container_or_layout(tensors: Tensors) -> None:
    backwards = dict(reversed(tensors.items()))
    strided = tensors | {"b.weight": tensors["b.weight"].T.contiguous().T}
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    digests = {tensors_sha256(variant) for variant in (tensors, backwards, strided, doubled)}
    assert len(digests) == 1


def test_a_digest_depends_on_values_names_and_shapes(tensors: Tensors) -> None:
    changed = tensors | {"a": torch.nextafter(tensors["a"], torch.tensor(9.0))}
    renamed = {name.replace("scalar", "vector"): tensor for name, tensor in tensors.items()}
    reshaped = tensors | {"b.weight": tensors["b.weight"].reshape(4, 3)}
    digests = {tensors_sha256(variant) for variant in (tensors, changed, renamed, reshaped)}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NORM), f"missing tensor {NORM}"),
        (lambda t: t.update(c=torch.ones(2)), "unexpected tensor c"),
        (lambda t: t.update({NORM: torch.ones(1, 12)}), f"{NORM}: "),
        (lambda t: t.update({NORM: torch.ones(12, dtype=torch.int32)}), f"{NORM}: "),
        (lambda t: t.update({NORM: torch.ones(12, dtype=torch.complex64)}), f"{NORM}: "),
        (lambda t: t.update({NORM: torch.ones(12).to(torch.float8_e4m3fn)}), f"{NORM}: "),
        (lambda t: t[NORM][3:].fill_(torch.nan), f"{NORM}: "),
        (lambda t: t[NORM][3:].fill_(-torch.inf), f"{NORM}: "),
    ],
)
def test_unexpected_tensors_are_refused(
    make_backbone, path: Path, change: Callable[[Tensors], object], message: str
) -> None:
    state = {name: tensor.clone() for name, tensor in make_backbone(SETTINGS).state_dict().items()}
    change(state)
    save_file(state, path, {"settings": SETTINGS.model_dump_json(), "provenance": "{}"})
    assert_refused(path, message)


def test_a_pickle_in_disguise_is_refused_and_not_run(path: Path, tensors: Tensors) -> None:
    trace = path.with_name("trace")

    class Touch:
        def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
            return (Path.touch, (trace,))

    torch.save({**tensors, "payload": Touch()}, path)
    assert_refused(path, str(path))
    assert not trace.exists()


def test_a_missing_file_and_a_folder_are_refused(path: Path) -> None:
    assert_refused(path, "no such file")
    path.mkdir()
    assert_refused(path, "a folder")


WRITTEN = save({"a": torch.zeros(2)})


def with_header(text: str) -> bytes:
    """A file with a header and 12 bytes of tensors."""
    return struct.pack("<Q", len(text)) + text.encode() + bytes(12)


def entry(shape: object, *offsets: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "content",
    [
        *(WRITTEN[:length] for length in (0, 8, -1)),
        WRITTEN + b"more",
        b"random bytes that are no header",
        with_header(json.dumps({"a": entry([3], 0, 8)})),  # a wrong size
        with_header(json.dumps({"a": entry([2], 0, 8, dtype="F99")})),
        with_header('["a"]'),
    ],
)
def test_a_damaged_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert_refused(path, "damaged or truncated")


OTHER = SETTINGS.model_copy(update={"mlp_width": 24})


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


def test_another_image_size_changes_the_patch_positions_only(make_backbone) -> None:
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
    with pytest.raises(SettingsError, match="image_size"):
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
        {"settings": '{"layers": 1000000000}', "provenance": "{}"},
        {"settings": SETTINGS.model_dump_json(), "provenance": "{"},
        {"settings": OTHER.model_dump_json(), "provenance": "{}"},
    ],
)
def test_a_file_without_the_metadata_of_its_backbone_is_refused(
    make_backbone, tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    path = tmp_path / "backbone.safetensors"
    save_file(make_backbone(SETTINGS).state_dict(), path, metadata=metadata)
    with pytest.raises(CheckpointError) as caught:
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


@pytest.mark.parametrize("name", models.list_models(include="vit_*"))
def test_the_published_weights_of_all_vision_transformers_are_known(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "weights.pth").write_bytes(b"other")
    for weights in models.get_model_weights(name):
        with pytest.raises(SettingsError, match="SHA-256"):  # that of another file
            published_backbone(str(weights), tmp_path / "weights.pth")


def test_an_unknown_published_name_is_a_settings_error_with_the_known_names() -> None:
    with pytest.raises(SettingsError, match=r"ViT_B_32_Weights\.IMAGENET1K_V1"):
        published_backbone("ResNet50_Weights.IMAGENET1K_V1")


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
    family = WeightsEnum("HostileWeights", {"V1": weights})
    known = {tiny_published.name: (models.vit_b_32, family["V1"])}
    monkeypatch.setattr("eulerlora.checkpoint.weights._published_weights", lambda: known)
    with pytest.raises(Exception, match=r"(?i)weights"):
        published_backbone(tiny_published.name)
    assert not trace.exists()
