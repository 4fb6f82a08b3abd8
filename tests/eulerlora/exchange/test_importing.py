"""Imported backbones against the libraries that they come from, with random weights."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from eulerlora.checkpoint.hub import Repository
from eulerlora.checkpoint.weights import load_backbone
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import HubError
from tests.eulerlora.exchange.conftest import as_normalised
from tests.eulerlora.exchange.sources import MODELS, SavedModel, of_timm, of_transformers
from tests.program import refusal, run, succeed
from training.adaptation.network import read_backbone
from training.recipe.schema import BackboneSource

TOLERANCE = 1e-4


def images(size: int) -> Tensor:
    return torch.rand(2, 3, size, size, generator=Generator().manual_seed(0))


def imported(folder: Path, *options: object):
    """The backbone that `eulerlora backbone import` writes."""
    out = folder / f"imported-{len(list(folder.iterdir()))}"
    succeed("backbone", "import", folder, "--out", out, *map(str, options))
    return load_backbone(out / "backbone.safetensors")


def refused(folder: Path) -> str:
    """The line in which `eulerlora backbone import` refuses a folder; nothing is written."""
    line = refusal("backbone", "import", folder, "--out", folder / "refused")
    assert not (folder / "refused").exists()
    return line


@pytest.mark.parametrize("save", MODELS.values(), ids=MODELS)
@torch.inference_mode()
def test_an_imported_backbone_has_the_features_of_its_library(
    save: Callable[[Path], SavedModel], tmp_path: Path
) -> None:
    saved = save(tmp_path / "source")
    file = imported(tmp_path / "source")
    assert file.provenance["imported"]["architecture"] == saved.architecture
    backbone = file.backbone.eval()
    pixels = images(backbone.settings.image_size)
    expected = saved.features(pixels)
    assert expected.std() > 0.1
    torch.testing.assert_close(backbone(pixels), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "Dinov2WithRegisters", "DINOv3ViT"])
@torch.inference_mode()
def test_positions_for_another_image_size_are_those_of_the_library(
    kind: str, tmp_path: Path
) -> None:
    of_transformers(tmp_path / "source", kind)
    model = getattr(transformers, f"{kind}Model").from_pretrained(tmp_path / "source").eval()
    file = imported(tmp_path / "source", "--image-size", 48)
    options = {"interpolate_pos_encoding": True} if kind == "ViT" else {}
    expected = model(images(48), **options).last_hidden_state[:, 0]
    actual = file.backbone.eval()(images(48))
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)
    assert file.preprocessing.size == 48


@torch.inference_mode()
def test_positions_of_timm_for_another_image_size_are_those_of_timm(tmp_path: Path) -> None:
    of_timm(tmp_path / "source")
    small, large = (
        imported(tmp_path / "source", "--image-size", size).backbone for size in (32, 48)
    )
    positions = small.encoder.pos_embedding
    expected = timm.layers.resample_abs_pos_embed(positions, [6, 6], num_prefix_tokens=1)
    torch.testing.assert_close(large.encoder.pos_embedding.data, expected)


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    of_transformers(tmp_path / "source", "ViT", intermediate_size=24)
    whole = tmp_path / "source" / "model.safetensors"
    expected = imported(tmp_path / "source").backbone.state_dict()
    tensors = load_file(whole)
    whole.unlink()
    weight_map = {}
    for part in range(2):
        shard = {n: t for i, (n, t) in enumerate(tensors.items()) if i % 2 == part}
        save_file(shard, tmp_path / "source" / f"model-{part}.safetensors")
        weight_map |= dict.fromkeys(shard, f"model-{part}.safetensors")
    index = tmp_path / "source" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    actual = imported(tmp_path / "source").backbone.state_dict()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    assert index.name in refused(tmp_path / "source")


def test_heads_that_timm_does_not_state_are_those_of_its_models(tmp_path: Path) -> None:
    source = tmp_path / "source"
    of_timm(source, embed_dim=1152, depth=1, num_heads=16, mlp_ratio=0.1)
    config = json.loads((source / "config.json").read_text())
    del config["model_args"]["num_heads"]
    (source / "config.json").write_text(json.dumps(config))
    assert imported(source).backbone.settings.heads == 16


def test_a_pickle_is_read_without_running_its_code(tmp_path: Path) -> None:
    of_timm(tmp_path / "source")
    trace = tmp_path / "trace"

    class Touch:
        def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
            return (Path.touch, (trace,))

    (tmp_path / "source" / "model.safetensors").unlink()
    torch.save({"payload": Touch()}, tmp_path / "source" / "pytorch_model.bin")
    refused(tmp_path / "source")
    assert not trace.exists()


@pytest.mark.parametrize("licence", ["apache-2.0", '"apache-2.0"', "'apache-2.0'"])
def test_the_file_states_origin_licence_and_hash(tmp_path: Path, licence: str) -> None:
    of_transformers(tmp_path / "source", "ViT", intermediate_size=24)
    (tmp_path / "source" / "README.md").write_text(f"---\ntags:\n- a\nlicense: {licence}\n---\n")
    file = imported(tmp_path / "source")
    content = (tmp_path / "source" / "model.safetensors").read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    assert file.provenance["imported"] == {
        "source": "source", "revision": None, "architecture": "vit", "licence": "apache-2.0",
        "sha256": sha256,
    }  # fmt: skip
    (card,) = (tmp_path / "source").glob("imported-*/README.md")
    assert all(part in card.read_text() for part in ("apache-2.0", sha256))


def change(folder: Path, **values: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "swin"}, "swin"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"num_channels": 1}, "num_channels"),
        ({"num_hidden_layers": 1}, r"encoder\.layer\.1"),
        ({"num_hidden_layers": 3}, r"encoder\.layer\.2"),
        ({"intermediate_size": 25}, "shape"),
        ({"num_attention_heads": 3}, "heads"),
    ],
)
def test_a_model_that_is_not_known_is_refused_in_one_line(
    tmp_path: Path, values: dict[str, object], reason: str
) -> None:
    of_transformers(tmp_path / "source", "ViT", intermediate_size=24)
    change(tmp_path / "source", **values)
    assert re.search(reason, refused(tmp_path / "source"))


@pytest.mark.parametrize(
    ("save", "named"),
    [
        (partial(of_transformers, kind="DINOv3ViT", rope_theta=10.0), "rope_theta"),
        (partial(of_transformers, kind="DINOv3ViT", use_gated_mlp=True), "hidden_act=silu"),
        (partial(of_transformers, kind="SiglipVision"), "attention pooling, no class token"),
        (partial(of_transformers, kind="Beit", use_relative_position_bias=True), "relative pos"),
        (partial(of_timm, class_token=False, global_pool="map"), "pooling, no class token"),
        (partial(of_timm, pos_embed="none"), "rotary positions"),
        (partial(of_timm, qk_norm=True), "unknown tensor"),
    ],
)
def test_a_model_with_other_modules_is_refused_by_their_names(
    tmp_path: Path, save: Callable[[Path], SavedModel], named: str
) -> None:
    save(tmp_path / "source")
    assert named in refused(tmp_path / "source")


def test_a_folder_without_weights_or_with_damaged_files_is_refused(tmp_path: Path) -> None:
    of_transformers(tmp_path / "source", "ViT", intermediate_size=24)
    for name, content in (("config.json", "{"), ("model.safetensors", "{}")):
        copy = shutil.copytree(tmp_path / "source", tmp_path / f"no-{name}")
        (copy / name).write_text(content)
        refused(copy)
    (tmp_path / "source" / "model.safetensors").unlink()
    refused(tmp_path / "source")
    refused(tmp_path / "nothing")
    assert "expected a folder" in refused(tmp_path / "source" / "config.json")
    (tmp_path / "source" / "pytorch_model.bin").write_text("hello world")
    assert "readable" in refused(tmp_path / "source")


@pytest.mark.parametrize(
    "values",
    [{"image_mean": 0.5}, {"image_mean": None, "image_std": [0.5] * 3}, {"rescale_factor": 0}],
)
def test_a_configuration_with_values_of_another_kind_is_refused(
    tmp_path: Path, values: dict[str, object]
) -> None:
    of_transformers(tmp_path, "ViT", intermediate_size=24)
    write_processor(tmp_path, **values)
    assert "unexpected kind" in refused(tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    of_transformers(tmp_path, "ViT", intermediate_size=24)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] = math.nan
    save_file(tensors, path, metadata={"format": "pt"})
    assert "finite" in refused(tmp_path)


def write_processor(folder: Path, **values: object) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


def processor(folder: Path, **values: object) -> Preprocessing:
    write_processor(folder, **values)
    return imported(folder).preprocessing


def test_an_import_states_its_tokens_and_a_usual_size_if_they_are_many(tmp_path: Path) -> None:
    of_transformers(tmp_path / "source", "ViT", intermediate_size=24)
    patch = imported(tmp_path / "source").backbone.settings.patch_size
    for tokens_a_side, hint in ((224 // patch, False), (2 * 224 // patch, True)):
        out = tmp_path / str(tokens_a_side)
        options = ("--image-size", str(tokens_a_side * patch))
        done = succeed("backbone", "import", tmp_path / "source", "--out", out, *options)
        assert f"{tokens_a_side**2 + 1:,} tokens" in done.out
        assert ("--image-size" in done.out) == hint


def test_the_preprocessing_is_that_of_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    of_transformers(folder, "ViT", intermediate_size=24)
    assert imported(folder).preprocessing == Preprocessing(size=32)
    done = succeed("backbone", "import", folder, "--out", tmp_path / "out")
    assert "the source states no preprocessing" in done.out
    colours = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}
    squash = processor(folder, size={"height": 32, "width": 32}, resample=2, **colours)
    assert squash == Preprocessing(size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    crop = processor(
        folder, size={"shortest_edge": 36}, do_center_crop=True, resample=3,
        crop_size={"height": 32, "width": 32}, do_normalize=False,
    )  # fmt: skip
    assert crop == Preprocessing(
        size=32, resize="crop", shorter_side=36, interpolation="bicubic-antialias"
    )
    smaller = processor(folder, size=16, **colours)  # older files have one number
    assert smaller.size == 16
    assert processor(folder, **colours).size == 32  # that of the model
    wider = processor(folder, size=32, rescale_factor=1 / 127.5, **colours)  # pixels in [0, 2]
    assert wider.mean == pytest.approx((0.25, 0.2, 0.15))
    assert wider.std == pytest.approx((0.1,) * 3)
    write_processor(folder, size=32, resample=0)
    assert "resample" in refused(folder)
    for size in (40, {"height": 40, "width": 40}):
        write_processor(
            folder, size=size, crop_size=32, do_center_crop=True,
            image_processor_type="DeiTImageProcessor",
        )  # fmt: skip
        assert "crop_size" in refused(folder)


def nested_processor(folder: Path) -> None:
    tokens = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}
    image_processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}
    )
    tokenizer = transformers.CLIPTokenizer(vocab=tokens, merges=[])
    transformers.CLIPProcessor(image_processor, tokenizer).save_pretrained(folder)
    assert not (folder / "preprocessor_config.json").exists()


@pytest.mark.parametrize(
    ("kind", "named", "values"),
    [
        ("CLIP", "feature_extractor_type", {"size": 36}),
        ("Bit", "image_processor_type", {"size": 36}),
        ("DeiT", "image_processor_type", {"size": 32}),
        ("ViT", "image_processor_type", {"size": 32, "do_center_crop": False}),
        ("CLIP", "nested", {}),
    ],
)
def test_an_image_processor_of_transformers_gives_the_same_input(
    kind: str, named: str, values: dict[str, object], tmp_path: Path
) -> None:
    of_transformers(tmp_path, "ViT", intermediate_size=24)
    if named == "nested":
        nested_processor(tmp_path)
    else:
        suffix = "FeatureExtractor" if named.startswith("feature") else "ImageProcessor"
        common = {"do_center_crop": True, "crop_size": 32, "resample": 3}
        colours = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
        processor(tmp_path, **{named: kind + suffix} | common | colours | values)
    preprocessing = imported(tmp_path).preprocessing
    rows, columns = np.mgrid[0:60, 0:120]
    smooth = np.stack([2 * columns, 4 * rows, 128 + 0 * rows], axis=-1).astype(np.uint8)
    library = getattr(transformers, f"{kind}ImageProcessor").from_pretrained(tmp_path)
    expected = library(Image.fromarray(smooth), return_tensors="pt").pixel_values
    actual = as_normalised(smooth, preprocessing)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0.03)


def test_the_preprocessing_of_timm_and_open_clip_is_read(tmp_path: Path) -> None:
    of_timm(tmp_path / "timm")
    assert imported(tmp_path / "timm").preprocessing == Preprocessing(
        size=32, resize="crop", shorter_side=35, interpolation="bicubic-antialias",
        mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25),
    )  # fmt: skip
    MODELS["open_clip with a timm trunk"](tmp_path / "clip")
    preprocessing = imported(tmp_path / "clip").preprocessing
    assert (preprocessing.size, preprocessing.shorter_side) == (224, 224)
    assert preprocessing.mean == (0.48, 0.46, 0.41)


def test_an_imported_backbone_is_one_that_training_reads(tmp_path: Path) -> None:
    of_timm(tmp_path / "source")
    done = run("backbone", "import", tmp_path / "source", "--out", tmp_path / "out")
    assert done.status == 0, done.err
    path = tmp_path / "out" / "backbone.safetensors"
    assert f"--set backbone.weights={path}" in done.out
    assert "licence: not stated by the source" in done.out
    assert f"{path}: already a backbone" in refused(tmp_path / "out")
    for size, shorter_side in ((None, 35), (64, 70)):
        source = BackboneSource(weights=str(path), image_size=size)
        frozen = read_backbone(source, tmp_path, torch.float16)
        assert frozen.preprocessing == Preprocessing(
            size=size or 32, resize="crop", shorter_side=shorter_side,
            interpolation="bicubic-antialias", mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25),
        )  # fmt: skip
        assert frozen.backbone.settings.image_size == frozen.preprocessing.size
        assert frozen.provenance["imported"]["architecture"] == "timm"


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
        with pytest.raises(HubError, match="no such folder" if name else "repository"):
            Repository.of_url(name)
