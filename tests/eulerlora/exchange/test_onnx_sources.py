"""DINOv2 trunks in ONNX files, against the model that was exported."""

import warnings
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import onnx
import pytest
import torch
import transformers
from torch import Generator, Tensor, nn

from eulerlora.checkpoint.weights import load_backbone
from eulerlora.exchange.importing import find_source, import_backbone, read_source
from eulerlora_contract.errors import CheckpointError
from tests.eulerlora.exchange.sources import randomised

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
        """images: (n, 3, size, size)."""
        patches = self.backbone(pixel_values=images).last_hidden_state[:, 1:]
        return torch.sigmoid(self.decoder(patches))


@pytest.fixture(scope="module")
def model() -> Saliency:
    saliency: Saliency = randomised(Saliency())
    return saliency


@pytest.fixture(scope="module")
def exported(model: Saliency, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "saliency.onnx"
    with warnings.catch_warnings(action="ignore"):  # the exporter is deprecated
        torch.onnx.export(
            model, (torch.zeros(1, 3, 28, 28),), path, dynamo=False, opset_version=14,
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


def in_version_4(name: str) -> str:
    """Returns the path of a node, or the name of a tensor, of version 4 of transformers."""
    for new, old in VERSION_4.items():
        name = name.replace(new, old).replace(new.replace("/", "."), old.replace("/", "."))
    return name


def wheel(folder: Path, **members: bytes) -> Path:
    """Returns a wheel with these ONNX files."""
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
    imported = read_source(find_source(str(exported)), size)
    images = torch.rand(2, 3, size, size, generator=Generator().manual_seed(0))
    expected = model.backbone(pixel_values=images).last_hidden_state[:, 0]
    assert expected.std() > 0.1
    actual = imported.backbone.eval()(images)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    assert imported.preprocessing.size == size
    assert imported.preprocessing.mean == (0.485, 0.456, 0.406)


def test_a_wheel_states_name_version_and_licence(exported: Path, tmp_path: Path) -> None:
    source = find_source(str(wheel(tmp_path, model=exported.read_bytes())))
    import_backbone(source, tmp_path / "out")
    file = load_backbone(tmp_path / "out" / "backbone.safetensors")
    assert file.provenance["imported"] == {
        "source": "some-model", "revision": "1.2", "architecture": "dinov2", "licence": "MIT",
        "sha256": source.sha256,
    }  # fmt: skip
    alone = read_source(find_source(str(exported)))
    assert alone.provenance["imported"]["licence"] is None
    torch.testing.assert_close(file.backbone.state_dict(), alone.backbone.state_dict())


def without(name: str) -> Callable[[bytes], bytes]:
    """Returns a change of an ONNX file that renames the constants whose name ends in `name`."""

    def change(content: bytes) -> bytes:
        model = onnx.load_model_from_string(content)
        for tensor in model.graph.initializer:
            if tensor.name.endswith(name):
                tensor.name = "other"
        return bytes(model.SerializeToString())

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content[: len(content) // 2], "ONNX file"),
        (lambda _: b"no protocol buffer", "ONNX file"),
        (without("embeddings.cls_token"), "embeddings.cls_token"),
        (without("embeddings.patch_embeddings.projection.weight"), "patch_embeddings"),
        (without("layer.1.norm2.weight"), "encoder.layer.1"),
    ],
)
def test_a_file_without_a_trunk_is_refused(
    exported: Path, tmp_path: Path, change: Callable[[bytes], bytes], named: str
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(change(exported.read_bytes()))
    with pytest.raises(CheckpointError, match=named):
        read_source(find_source(str(path)))


def test_only_a_readable_wheel_with_one_onnx_file_is_a_source(tmp_path: Path) -> None:
    broken = tmp_path / "broken.whl"
    broken.write_bytes(b"no archive")
    paths = [broken, wheel(tmp_path), tmp_path / "missing.onnx", tmp_path / "missing.whl"]
    for path in [*paths, wheel(tmp_path, a=b"", b=b"")]:
        with pytest.raises(CheckpointError):
            find_source(str(path))
