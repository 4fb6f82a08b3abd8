"""Checkpoints to PEFT and back, against PEFT on the ViT of transformers."""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, MontecloraConfig, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPImageProcessor,
    CLIPModel,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.nn.method import COEFFICIENTS
from eulerlora.peft import EulerLoraConfig, sampling
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Draw, Preprocessing
from tests.checkpoint_files import write_config
from tests.conftest import predict_rows
from tests.eulerlora.exchange.conftest import PREPROCESSING, as_normalised, det_probabilities
from tests.eulerlora.exchange.sources import randomised
from tests.program import refusal, run, succeed
from training.data.datasets import calibrated_dataset, evaluated_dataset

TOLERANCE = 1e-5
COLOURS = [
    torch.tensor(values)[:, None, None] for values in (PREPROCESSING.mean, PREPROCESSING.std)
]


@torch.inference_mode()
def peft_probabilities(folder: Path, adapters: Sequence[str], images: Tensor) -> Tensor:
    """(n, adapters, classes) of an exported folder, from PEFT."""
    pixels = (images - COLOURS[0]) / COLOURS[1]
    probabilities = []
    for name in adapters:
        backbone = ViTForImageClassification.from_pretrained(folder / "backbone")
        model = PeftModel.from_pretrained(backbone, folder / name).eval()
        probabilities.append(model(pixel_values=pixels).logits.softmax(dim=-1))
    return torch.stack(probabilities, dim=1)


@pytest.mark.parametrize(
    "options",
    [{}, {"layer_scale": True}, {"activation": "quick-gelu", "norm_epsilon": 1e-4}],
    ids=str,
)
@pytest.mark.parametrize("version", ["5", "4"])
def test_peft_gives_the_probabilities_of_mode_det(
    make_checkpoint, images: Tensor, tmp_path: Path, options: dict[str, object], version: str
) -> None:
    """transformers reads the names of its version 4 too."""
    checkpoint, out = make_checkpoint(**options), tmp_path / "peft"
    done = run("export", checkpoint, "--format", "peft", "--out", out, "--transformers", version)
    assert done.status == 0, done.err
    expected = det_probabilities(checkpoint, images)
    if version == "4":
        rename_to_version_5(out)
    actual = peft_probabilities(out, ("adapter_0", "adapter_1"), images)
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)
    assert (expected[:, 0] - expected[:, 1]).abs().max() > 0.01
    assert "stochastic mode cannot be expressed" in (out / "README.md").read_text()


def rename_to_version_5(folder: Path) -> None:
    """Renames adapters from version 4 of transformers, which is not installed, to version 5."""
    names = (
        ("vit.encoder.layer.", "vit.layers."),
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
    )
    for adapter in folder.glob("adapter_*"):
        path, config = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
        tensors = load_file(path)
        for old, new in names:
            tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
        save_file(tensors, path)
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        config.write_text(json.dumps(json.loads(config.read_text()) | {"target_modules": targets}))


@pytest.mark.parametrize("version", ["5", "4"])
def test_an_exported_checkpoint_comes_back_with_the_same_probabilities(
    make_checkpoint, images: Tensor, tmp_path: Path, version: str
) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "peft"
    run("export", checkpoint, "--format", "peft", "--out", out, "--transformers", version)
    folders = (out / "adapter_0", out / "adapter_1")
    done = run("import", *folders, "--format", "peft", "--out", tmp_path / "back")
    assert done.status == 0, done.err
    assert f"eulerlora calibrate {tmp_path / 'back'} --data DIR --out NEW" in done.out
    assert "it was trained on are not recorded" in (tmp_path / "back" / "README.md").read_text()
    back = load_checkpoint(tmp_path / "back").config
    assert [label.name for label in back.classes] == ["bkl", "mel", "nv"]
    assert back.preprocessing == PREPROCESSING
    torch.testing.assert_close(
        det_probabilities(tmp_path / "back", images),
        det_probabilities(checkpoint, images),
        rtol=0,
        atol=TOLERANCE,
    )


def imported(out: Path, *arguments: object) -> CheckpointConfig:
    """The config of the checkpoint that `eulerlora import` writes."""
    succeed("import", *arguments, "--format", "peft", "--out", out)
    return load_checkpoint(out).config


def refused(out: Path, *arguments: object) -> str:
    """The line in which `eulerlora import` refuses adapters."""
    return refusal("import", *arguments, "--format", "peft", "--out", out)


def train_peft(
    folder: Path, backbone: Path, seed: int, kind: type[LoraConfig] = LoraConfig,
    architecture: type[PreTrainedModel] = ViTForImageClassification, **options: object,
) -> PeftModel:  # fmt: skip
    """Saves a PEFT model with random adapters and its head; returns it."""
    base = architecture.from_pretrained(backbone)
    config = kind(**{"modules_to_save": ["classifier"]} | options)
    model = get_peft_model(base, config)
    generator = Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.normal_(std=0.3, generator=generator)
    model.save_pretrained(folder)
    return model.eval()


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    """A ViT with a classifier of three classes, for images in [0, 1]."""
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8,
        intermediate_size=24, id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2},
    )  # fmt: skip
    torch.manual_seed(0)
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    processor = ViTImageProcessor(size={"height": 32, "width": 32}, do_normalize=False)
    processor.save_pretrained(tmp_path / "vit")
    return tmp_path / "vit"


@torch.inference_mode()
def test_adapters_of_peft_with_other_ranks_and_scalings_are_an_ensemble(
    backbone: Path, images: Tensor, tmp_path: Path
) -> None:
    options = [
        {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        {"r": 5, "lora_alpha": 3, "target_modules": ["k_proj", "o_proj"], "use_rslora": True},
        {
            "r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "o_proj"],
            "rank_pattern": {"layers.1.attention.q_proj": 4},
            "alpha_pattern": {r"layers.1\.attention.q_proj": 2},
        },
        {"r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], "modules_to_save": None},
        *(
            {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": method}
            for method in (False, "gaussian", "eva", "orthogonal", "mica")
        ),
    ]  # fmt: skip
    expected, folders = [], []
    for index, values in enumerate(options):
        folders.append(tmp_path / f"member_{index}")
        model = train_peft(folders[-1], backbone, index, **values)
        expected.append(model(pixel_values=images).logits.softmax(dim=-1))
    config = imported(tmp_path / "out", *folders)
    settings = config.adapters.settings
    assert (settings.adapters, settings.rank, settings.min_rank) == (9, 5, 5)
    assert [label.name for label in config.classes] == ["a", "b", "c"]
    actual = det_probabilities(tmp_path / "out", images)
    torch.testing.assert_close(actual, torch.stack(expected, 1), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("saved", [CLIPForImageClassification, CLIPModel])
@torch.inference_mode()
def test_the_head_of_clip_has_its_input_the_mean_of_the_patches(
    images: Tensor, tmp_path: Path, saved: type[PreTrainedModel]
) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPConfig(
        vision_config=shape | {"intermediate_size": 24, "image_size": 32, "patch_size": 8},
        text_config=shape | {"intermediate_size": 24, "vocab_size": 20},
        num_labels=3,
    )
    randomised(saved(config)).save_pretrained(tmp_path / "clip")
    adapter = tmp_path / "adapter"
    model = train_peft(
        adapter, tmp_path / "clip", 0, architecture=CLIPForImageClassification, r=2,
        target_modules=["q_proj", "out_proj"],
    )  # fmt: skip
    unit = tmp_path / "unit.json"
    unit.write_text(Preprocessing(size=32).model_dump_json())
    imported(tmp_path / "out", adapter, "--classes", "a,b,c", "--preprocessing", unit)
    expected = model(pixel_values=images).logits.softmax(dim=-1)
    actual = det_probabilities(tmp_path / "out", images)[:, 0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_an_imported_checkpoint_is_calibrated_on_all_held_out_pictures_or_stated_parts(
    backbone: Path, tmp_path: Path
) -> None:
    train_peft(tmp_path / "adapter", backbone, 0, target_modules=["q_proj"], r=2)
    out = tmp_path / "out"
    imported(out, tmp_path / "adapter", "--classes", "red,blue,green")
    for channel, name in enumerate(("red", "green", "blue")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(12):
            pixels = np.zeros((40, 40, 3), np.uint8)
            pixels[:, : 3 * index + 1, channel] = 255
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{index}.png")
    new = tmp_path / "new"
    succeed("calibrate", out, "--data", tmp_path / "data", "--device", "cpu", "--out", new)
    config = load_checkpoint(new).config
    assert {threshold.options.mode for threshold in config.thresholds} == {"det", "stoch"}
    assert {threshold.images for threshold in config.thresholds} == {36}
    assert config.features is not None
    assert config.features.images == 36
    images = calibrated_dataset(load_checkpoint(out).config, tmp_path / "data")
    assert [label.name for label in images.classes] == ["red", "blue", "green"]
    for image in images.parts["calibration"]:
        assert image.name.split("/")[-2] == images.classes[image.label].name
    (test,) = evaluated_dataset(config, new, tmp_path / "data").parts.values()
    assert len(test) == 36
    for name in ("red", "green", "blue"):
        for part, numbers in (("train", range(8)), ("val", range(8, 12))):
            (tmp_path / "parts" / part / name).mkdir(parents=True)
            for index in numbers:
                picture = Path(name, f"{index}.png")
                shutil.copy(tmp_path / "data" / picture, tmp_path / "parts" / part / picture)
    new = tmp_path / "of-parts"
    succeed("calibrate", out, "--data", tmp_path / "parts", "--device", "cpu", "--out", new)
    config = load_checkpoint(new).config
    assert config.features is not None
    assert config.features.images == 24
    assert {threshold.images for threshold in config.thresholds} == {12}
    assert len(evaluated_dataset(config, new, tmp_path / "parts").parts["test"]) == 12
    command = ("calibrate", out, "--data", tmp_path / "data", "--out", tmp_path / "refused")
    rows = [f"{name}/{index}.png,{name},P1" for name in ("red", "green", "blue") for index in "012"]
    (tmp_path / "data" / "labels.csv").write_text("\n".join(["path,label,group", *rows]))
    assert "two groups" in run(*command).err
    (tmp_path / "data" / "labels.csv").write_text("\n".join(["path,label,group", *rows[3:]]))
    assert "red" in run(*command).err
    assert not (tmp_path / "refused").exists()


def edit(folder: Path, **values: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("options", "values", "reason"),
    [
        ({"target_modules": ["fc1"]}, {}, "fc1"),
        ({"target_modules": ["q_proj"], "use_dora": True}, {}, "use_dora"),
        ({"target_modules": ["q_proj"]}, {"peft_type": "IA3"}, "IA3"),
        ({"target_modules": ["q_proj"]}, {"bias": "all"}, "bias"),
        *(
            ({"target_modules": ["q_proj"], "init_lora_weights": method}, {}, method)
            for method in ("pissa", "pissa_niter_2", "olora")
        ),
        *(
            ({"target_modules": ["q_proj"]}, {"init_lora_weights": method}, method)
            for method in ("corda", "loftq", "lora_ga")
        ),
        ({"target_modules": ["q_proj"]}, {"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        (  # would run without end
            {"target_modules": ["q_proj"]},
            {"alpha_pattern": {r"([a-z.]+)*\d\d\d": 1}},
            "alpha_pattern",
        ),
    ],
)
def test_an_adapter_that_cannot_be_expressed_is_refused_and_nothing_is_written(
    backbone: Path, tmp_path: Path, options: dict[str, object], values: dict[str, object],
    reason: str,
) -> None:  # fmt: skip
    train_peft(tmp_path / "adapter", backbone, 0, **options)
    edit(tmp_path / "adapter", **values)
    assert re.search(reason, refused(tmp_path / "out", tmp_path / "adapter"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("suffix", "change", "reason"),
    [
        ("lora_B.weight", lambda tensor: tensor.to(torch.int8), "floating point"),
        ("lora_B.weight", lambda tensor: tensor[:-1], "expected matrices ("),
        ("lora_A.weight", lambda tensor: tensor * math.nan, "finite"),
        ("classifier.bias", lambda tensor: tensor[:1], "a bias for each of 3 classes"),
    ],
)
def test_tensors_of_another_type_or_size_are_refused(
    backbone: Path, tmp_path: Path, suffix: str, change: Callable[[Tensor], Tensor], reason: str
) -> None:
    folder = tmp_path / "adapter"
    train_peft(folder, backbone, 0, target_modules=["q_proj"])
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    changed = {name: change(t) if name.endswith(suffix) else t for name, t in tensors.items()}
    save_file({name: tensor.contiguous().clone() for name, tensor in changed.items()}, path)
    assert reason in refused(tmp_path / "out", folder)


def train_eulerlora(folder: Path, backbone: Path, seed: int, **options: object) -> PeftModel:
    values = {"r": 4, "min_rank": 2, "steps": 3, "scale": 0.5} | options
    return train_peft(folder, backbone, seed, kind=EulerLoraConfig, **values)


def coefficients_of(own: Tensor) -> dict[str, Tensor]:
    """Coefficients (samples, blocks, 4, rank) of an adapter by the names of `eulerlora.peft`."""
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {
        f"base_model.model.vit.layers.{block}.attention.{name}.lora_A.default": own[:, block, index]
        for block in range(own.shape[1])
        for index, name in enumerate(projections)
    }


def assert_equal_trajectories(
    checkpoint: Path, models: Sequence[PeftModel], images: Tensor, pixels: Tensor
) -> None:
    """Compares 3 samples of every adapter, with the engine's masks in PEFT. pixels: normalised."""
    loaded = load_checkpoint(checkpoint)
    draw = Draw(mode="stoch", samples=3, seed=5)
    drawn = loaded.network.draw_rows([draw]).blocks[COEFFICIENTS]
    log_probabilities = predict_rows(loaded.network, images, [draw] * len(images))
    logits = torch.stack(log_probabilities) / loaded.config.temperature
    expected = logits.softmax(dim=-1).float().unflatten(1, (len(models), -1))
    for index, model in enumerate(models):
        given = coefficients_of(drawn.chunk(len(models))[index])
        with torch.no_grad(), sampling(model, samples=3, coefficients=given):
            actual = model(pixel_values=pixels).logits.softmax(-1).unflatten(0, (len(images), -1))
        torch.testing.assert_close(actual, expected[:, index], rtol=0, atol=TOLERANCE)
        assert actual.std(dim=1).max() > 1e-3


@torch.inference_mode()
def test_sampled_adapters_of_peft_are_a_checkpoint_with_their_trajectories(
    backbone: Path, images: Tensor, tmp_path: Path
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    models = [train_eulerlora(folder, backbone, seed) for seed, folder in enumerate(folders)]
    settings = imported(tmp_path / "out", *folders).adapters.settings
    assert settings == AdapterSettings(adapters=2, rank=4, min_rank=2, steps=3, scale=0.5)
    expected = [model(pixel_values=images).logits.softmax(dim=-1) for model in models]
    actual = det_probabilities(tmp_path / "out", images)
    torch.testing.assert_close(actual, torch.stack(expected, 1), rtol=0, atol=TOLERANCE)
    assert_equal_trajectories(tmp_path / "out", models, images, images)


def test_an_imported_adapter_has_half_of_its_rank_as_least_unless_stated(
    backbone: Path, tmp_path: Path
) -> None:
    train_eulerlora(tmp_path / "adapter", backbone, 0, r=5, min_rank=None)
    settings = imported(tmp_path / "out", tmp_path / "adapter").adapters.settings
    assert (settings.rank, settings.min_rank) == (5, 3)


def test_a_checkpoint_exported_with_sampling_has_the_trajectories_in_peft_and_comes_back(
    make_checkpoint, images: Tensor, tmp_path: Path
) -> None:
    checkpoint, out = make_checkpoint(), tmp_path / "peft"
    done = run("export", checkpoint, "--format", "peft", "--sampled", "--out", out)
    assert done.status == 0, done.err
    folders = [out / "adapter_0", out / "adapter_1"]
    models = []
    for folder in folders:
        base = ViTForImageClassification.from_pretrained(out / "backbone")
        models.append(PeftModel.from_pretrained(base, folder).eval())
    assert_equal_trajectories(checkpoint, models, images, (images - COLOURS[0]) / COLOURS[1])
    back = imported(tmp_path / "back", *folders)
    assert back.adapters.settings == load_checkpoint(checkpoint).config.adapters.settings


def test_sampled_adapters_with_different_laws_are_refused(backbone: Path, tmp_path: Path) -> None:
    train_eulerlora(tmp_path / "first", backbone, 0)
    for name, options in {
        "rank": {"r": 5},
        "law": {"min_rank": 3},
        "role": {"roles": {"v_proj": "output"}},
        "pattern": {"rank_pattern": {"v_proj": 3}},
    }.items():
        train_eulerlora(tmp_path / name, backbone, 0, **options)
        refused(tmp_path / "out", tmp_path / "first", tmp_path / name)
    assert not (tmp_path / "out").exists()


@torch.inference_mode()
def test_an_adapter_of_monteclora_answers_in_mode_det(
    backbone: Path, images: Tensor, tmp_path: Path
) -> None:
    options = {"target_modules": ["q_proj", "v_proj"], "monteclora_config": MontecloraConfig()}
    model = train_peft(tmp_path / "adapter", backbone, 0, r=2, **options)
    settings = imported(tmp_path / "out", tmp_path / "adapter").adapters.settings
    assert settings.min_rank == settings.rank
    expected = model(pixel_values=images).logits.softmax(dim=-1)
    actual = det_probabilities(tmp_path / "out", images)[:, 0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_the_preprocessing_of_imported_adapters_is_that_of_their_training(
    backbone: Path, tmp_path: Path
) -> None:
    """Stated on the command line, beside the adapter, or beside the backbone, in this order."""

    def prepared(*options: object) -> Preprocessing:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        return imported(out, adapter, *options).preprocessing

    adapter = tmp_path / "adapter"
    train_peft(adapter, backbone, 0, target_modules=["q_proj"])
    square = {"height": 32, "width": 32}
    assert prepared() == Preprocessing(size=32)
    ViTImageProcessor(size=square).save_pretrained(adapter)  # as Trainer does
    assert prepared() == Preprocessing(size=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    stated = tmp_path / "stated.json"
    stated.write_text(json.dumps(PREPROCESSING.model_dump(mode="json")))
    assert prepared("--preprocessing", stated) == PREPROCESSING
    train_peft(tmp_path / "second", backbone, 1, target_modules=["q_proj"])
    ViTImageProcessor(size=square, resample=3).save_pretrained(tmp_path / "second")
    assert "one preprocessing" in refused(tmp_path / "out", adapter, tmp_path / "second")
    for folder in (adapter, backbone):
        (folder / "preprocessor_config.json").unlink()
    assert "--preprocessing" in refused(tmp_path / "out", adapter)
    assert not (tmp_path / "out").exists()
    stated.write_text("[]")
    refused(tmp_path / "out", adapter, "--preprocessing", stated)


def test_adapters_of_several_backbones_or_numbers_of_classes_are_refused(
    backbone: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        train_peft(folder, backbone, 0, target_modules=["q_proj"])
    out, stated = tmp_path / "out", ("--backbone", backbone)
    assert "class names" in refused(out, *folders, "--classes", "x,y")
    edit(folders[1], base_model_name_or_path="other")
    assert "--backbone" in refused(out, *folders)
    assert len(imported(out, *folders, *stated).classes) == 3
    assert "adapter_config.json" in refused(tmp_path / "none", backbone, *stated)


@pytest.mark.parametrize("crop", [False, True])
def test_the_exported_image_processor_comes_close_to_the_preprocessing(
    make_checkpoint, tmp_path: Path, crop: bool
) -> None:
    checkpoint = make_checkpoint()
    config = load_checkpoint(checkpoint).config
    given = config.preprocessing
    if crop:
        given = given.model_copy(update={"resize": "crop", "shorter_side": 40})
        write_config(checkpoint, config.model_copy(update={"preprocessing": given}))
    succeed("export", checkpoint, "--format", "peft", "--out", tmp_path / "peft")
    kind = CLIPImageProcessor if crop else ViTImageProcessor
    backbone = tmp_path / "peft" / "backbone"
    stated = json.loads((backbone / "preprocessor_config.json").read_text())
    assert stated["image_processor_type"] == kind.__name__
    processor = kind.from_pretrained(backbone)
    smooth = np.linspace(0, 255, 60 * 80 * 3).reshape(60, 80, 3).astype(np.uint8)
    actual = processor(Image.fromarray(smooth), return_tensors="pt").pixel_values
    assert (actual - as_normalised(smooth, given)).abs().max() < 0.03
