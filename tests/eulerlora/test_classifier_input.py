"""`adapt(vit).save()`: the service prepares pictures as the loop did."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import timm
import torch
import transformers
from PIL import Image
from timm.data import create_transform, resolve_data_config, resolve_model_data_config
from timm.models import vision_transformer as timm_vit
from torch import Generator, Tensor, nn
from torchvision import transforms
from torchvision.models import VisionTransformer, ViT_B_16_Weights
from torchvision.transforms import InterpolationMode, v2

from eulerlora import EulerLoRA, adapt
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from tests.eulerlora.exchange.sources import PATCH, SHAPE, SIZE, TIMM, WIDTH, randomised


@pytest.fixture(autouse=True)
def seed() -> None:
    """Of the networks, their adapters and heads: some answer nearly alike to all pictures."""
    torch.manual_seed(6)


OPTIONS: dict[str, Any] = {"rank": 4, "min_rank": 2, "classes": 3}
NORMALISED = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}


def picture(seed: int, width: int = 90, height: int = 60) -> Image.Image:
    """Smooth colours that flips, crops and other colour orders change."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


PICTURES = [picture(seed) for seed in range(4)]


def of_torchvision() -> nn.Module:
    return randomised(VisionTransformer(SIZE, PATCH, 2, 2, WIDTH, 24))


def of_timm() -> Any:
    vit = timm.create_model(
        "vit_tiny_patch16_224", img_size=SIZE, patch_size=PATCH, embed_dim=WIDTH, depth=2,
        num_heads=2,
    )  # fmt: skip
    return randomised(vit)


def of_transformers() -> Any:
    config = transformers.ViTConfig(**SHAPE, intermediate_size=24)
    return randomised(transformers.ViTModel(config))


def timms_transform(vit: Any) -> Callable[[Image.Image], Tensor]:
    size = {"input_size": (3, SIZE, SIZE)}
    transform: Callable[[Image.Image], Tensor] = create_transform(
        **resolve_data_config(size, model=vit)
    )
    return transform


def fed_by(transform: Callable[[Image.Image], Tensor]) -> Tensor:
    return torch.stack([transform(image) for image in PICTURES])


def with_processor(processor: Any) -> Callable[[Image.Image], Tensor]:
    return lambda image: processor(image, return_tensors="pt").pixel_values[0]


@torch.no_grad()
def assert_served_as_in_the_loop(model, fed: Tensor, folder: Path) -> None:
    """Within the rounding of Pillow's filter to eight bits."""
    for block in model.network.blocks:
        block.up.normal_(std=0.3, generator=Generator().manual_seed(2))
    expected = model.eval()(fed).softmax(dim=-1)
    model.save(folder)
    served = torch.as_tensor(EulerLoRA.load(folder, device="cpu").predict(PICTURES).trajectories)
    torch.testing.assert_close(served, expected, rtol=0, atol=0.02, check_dtype=False)
    assert (expected[0] - expected[1]).abs().max() > 0.1


def test_a_network_of_timm_is_served_with_its_configuration(tmp_path: Path) -> None:
    vit = of_timm()
    fed = fed_by(timms_transform(vit))
    assert_served_as_in_the_loop(adapt(vit, **OPTIONS), fed, tmp_path / "checkpoint")


def test_a_network_of_transformers_is_served_with_the_image_processor_beside_it(
    tmp_path: Path,
) -> None:
    of_transformers().save_pretrained(tmp_path / "vit")
    processor = transformers.ViTImageProcessor(size={"height": SIZE, "width": SIZE}, resample=3)
    processor.save_pretrained(tmp_path / "vit")
    vit = transformers.ViTModel.from_pretrained(tmp_path / "vit")
    fed = fed_by(with_processor(processor))
    assert_served_as_in_the_loop(adapt(vit, **OPTIONS), fed, tmp_path / "checkpoint")


CROP = Preprocessing(
    size=SIZE, resize="crop", shorter_side=36, interpolation="bicubic-antialias", **NORMALISED
)
STATED: dict[str, Any] = {
    "Preprocessing": CROP,
    "its fields": CROP.model_dump(),
    "timm's transform": create_transform((3, SIZE, SIZE), interpolation="bicubic", crop_pct=0.88,
                                         **NORMALISED),
    "timm's data configuration": resolve_data_config(
        {"input_size": (3, SIZE, SIZE), "crop_pct": 0.88, **NORMALISED}, {}),
    "an image processor": transformers.CLIPImageProcessor(
        size={"shortest_edge": 36}, crop_size={"height": SIZE, "width": SIZE},
        image_mean=list(NORMALISED["mean"]), image_std=list(NORMALISED["std"])),
    "a preset of torchvision": ViT_B_16_Weights.IMAGENET1K_V1.transforms(
        crop_size=SIZE, resize_size=36, interpolation=InterpolationMode.BICUBIC, **NORMALISED),
    "transforms v2": v2.Compose([
        v2.ToImage(), v2.Resize(36, InterpolationMode.BICUBIC), v2.CenterCrop(SIZE),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(**NORMALISED)]),
}  # fmt: skip


@pytest.mark.parametrize("stated", STATED.values(), ids=STATED)
def test_what_a_library_calls_its_preprocessing_is_understood(stated: Any) -> None:
    model = adapt(of_torchvision(), **OPTIONS, preprocessing=stated)
    assert model.preprocessing == CROP


def test_a_squash_is_understood() -> None:
    squash = Preprocessing(size=SIZE)
    for stated in (
        transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()]),
        {"size": {"height": SIZE, "width": SIZE}, "do_normalize": False, "resample": 2},
    ):
        assert adapt(of_torchvision(), **OPTIONS, preprocessing=stated).preprocessing == squash
    clip = open_clip.image_transform(SIZE, is_train=False, resize_mode="squash")
    read = adapt(of_torchvision(), **OPTIONS, preprocessing=clip).preprocessing
    assert (read.resize, read.interpolation) == ("squash", "bicubic-antialias")
    assert read.mean == pytest.approx(open_clip.OPENAI_DATASET_MEAN)


def resized(*steps: Any) -> transforms.Compose:
    return transforms.Compose([*steps, transforms.ToTensor()])


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        (resolve_data_config({"input_size": (3, 32, 64)}, {}), "square"),
        (resolve_data_config({"input_size": (3, 64, 64)}, {}), "size 32"),
        (resolve_data_config({"input_size": (3, 32, 32), "crop_mode": "border"}, {}), "crop_mode"),
        (resolve_data_config({"input_size": (3, 32, 32), "crop_mode": "squash"}, {}), "crop_pct"),
        (resolve_data_config({"input_size": (3, 32, 32), "interpolation": "random"}, {}), "random"),
        (transformers.ViTImageProcessor(do_resize=False), "do_resize"),
        (transformers.ViTImageProcessor(resample=0), "resample"),
        (transformers.DeiTImageProcessor(), "crop_size"),
        (resized(transforms.RandomResizedCrop(32)), "RandomResizedCrop"),
        (resized(transforms.Resize(32)), "CenterCrop"),
        (resized(transforms.Resize((32, 32), antialias=False)), "antialias"),
        (resized(), "Resize"),
        (transforms.Compose([transforms.Resize((32, 32)), transforms.PILToTensor()]), "ToTensor"),
        (
            transforms.Compose([transforms.ToTensor(), transforms.Normalize(**NORMALISED),
                                transforms.Resize((32, 32))]),
            "Resize",
        ),
        (transformers.CLIPImageProcessor(crop_size=24, size={"shortest_edge": 36}), "got 24"),
        (ViT_B_16_Weights.IMAGENET1K_V1.transforms, "partial"),
        ({"a": 1}, "'a'"),
        ("imagenet", "str"),
    ],
)  # fmt: skip
def test_a_preprocessing_that_cannot_be_computed_is_refused(stated: Any, named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        adapt(of_torchvision(), **OPTIONS, preprocessing=stated)


@pytest.mark.parametrize(
    "vit",
    [of_torchvision, of_transformers, lambda: randomised(timm_vit.VisionTransformer(**TIMM))],
)
def test_save_asks_for_a_preprocessing_that_the_network_does_not_state(
    vit: Callable[[], Any], tmp_path: Path
) -> None:
    model = adapt(vit(), **OPTIONS)
    with pytest.raises(SettingsError, match=r"Preprocessing\(size=32\)"):
        model.save(tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()
    model.save(tmp_path / "checkpoint", Preprocessing(size=SIZE))


def test_images_of_the_loop_that_contradict_the_preprocessing_are_refused(tmp_path: Path) -> None:
    """Normalised images, and a pretrained configuration that the loop did not follow."""
    vit = of_timm()
    unit = fed_by(transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()]))
    normalised = fed_by(timms_transform(vit))
    for stated, fed in ((None, unit), (Preprocessing(size=SIZE), normalised), (None, 700 * unit)):
        model = adapt(vit, **OPTIONS)
        for _ in range(4):
            model(fed)
        values = f"{fed.min():.2f} to {fed.max():.2f}"
        with pytest.raises(SettingsError, match=f"got a loop with values {values}, "):
            model.save(tmp_path / "checkpoint", stated)
    model.save(tmp_path / "checkpoint", Preprocessing(size=SIZE), check=(unit, PICTURES))


COLOURS = {
    "none": {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)},
    "half": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    "ImageNet": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    "CLIP": {"mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD},
}
PHOTOGRAPHS = sorted(
    (Path(__file__).parents[2] / "clinic/eulerlora_clinic/service/page").glob("example-*.jpg")
)


@torch.no_grad()
@pytest.mark.parametrize("fed", COLOURS)
@pytest.mark.parametrize("served", COLOURS)
def test_a_loop_of_photographs_shows_its_normalisation(
    served: str, fed: str, tmp_path: Path
) -> None:
    """Other ones are refused, or named where few clipped pixels leave a doubt; few or dark
    photographs are not refused.
    """
    to_tensor = transforms.Compose([transforms.Resize((SIZE, SIZE)), transforms.ToTensor()])
    photographs = torch.stack([to_tensor(Image.open(file)) for file in PHOTOGRAPHS])
    normalise = transforms.Normalize(**COLOURS[fed])
    stated = Preprocessing(size=SIZE, **COLOURS[served])
    doubted = (served, fed) in {("ImageNet", "half"), ("CLIP", "half"), ("ImageNet", "CLIP")}
    bright = torch.cat([photographs, (2 * photographs).clamp(max=1)])
    cases = {"plain": photographs, "bright": bright, "one": photographs[:1],
             "dark": photographs / 4}  # fmt: skip
    for name, images in cases.items():
        model = adapt(of_torchvision(), **OPTIONS)
        for _ in range(1 if name == "one" else 6):
            model(normalise(images))
        if served == fed or (doubted and name == "plain"):
            with warnings.catch_warnings(record=True) as caught:
                model.save(tmp_path / name, stated)
            assert bool(caught) == doubted
        elif name in ("plain", "bright"):
            with pytest.raises(SettingsError, match=r"values -?\d.* to \d.* with values -?\d") as e:
                model.save(tmp_path / name, stated)
            named = f"those of mean {COLOURS[fed]['mean']} and std {COLOURS[fed]['std']}"
            assert ("clipped" in str(e.value)) == (named in str(e.value))


@torch.no_grad()
def test_save_names_what_is_served_if_the_loop_does_not_confirm_it(tmp_path: Path) -> None:
    """A configuration of the network that nobody stated, values far from black and white, or no
    images.
    """
    vit = of_timm()
    gray = torch.full((16, 3, SIZE, SIZE), -0.1)
    transform = timms_transform(vit)  # as by the configuration, but for a squash
    squashed = torch.stack([transform(image.resize((SIZE, SIZE))) for image in PICTURES])
    cases = (({}, gray[:0], True), ({}, gray[:1], True), ({}, squashed, True),
             (NORMALISED, gray[:0], True), (NORMALISED, gray[:1], False),
             (NORMALISED, gray, True))  # fmt: skip
    for index, (stated, fed, warned) in enumerate(cases):
        given = {"preprocessing": Preprocessing(size=SIZE, **stated)} if stated else {}
        model = adapt(vit, **OPTIONS, **given)
        if len(fed):
            model(fed)
        with warnings.catch_warnings(record=True) as caught:
            model.save(tmp_path / str(index))
        named = [str(model.preprocessing) in str(one.message) for one in caught]
        assert named == [True] * warned, index


def test_a_batch_of_the_loop_proves_the_preprocessing(tmp_path: Path) -> None:
    vit = of_timm()
    transform = timms_transform(vit)
    model = adapt(vit, **OPTIONS)
    files = []
    for index, image in enumerate(PICTURES):
        files.append(tmp_path / f"{index}.png")
        image.save(files[-1])
    model.save(tmp_path / "checkpoint", check=(fed_by(transform), files))
    images = EulerLoRA.load(tmp_path / "checkpoint", device="cpu").config.preprocessing
    assert images.mean == (0.5, 0.5, 0.5)


def disagreements() -> dict[str, Tensor]:
    fed = fed_by(timms_transform(of_timm()))
    bilinear = resolve_data_config({"input_size": (3, SIZE, SIZE)}, model=of_timm())
    squash = create_transform(**bilinear | {"crop_mode": "squash", "crop_pct": 1})
    nearest = create_transform(**bilinear | {"interpolation": "nearest"})
    return {
        "not normalised": 0.5 * fed + 0.5,
        "other colours": (fed - 0.1) / 0.9,
        "BGR": fed.flip(1),
        "squashed": fed_by(squash),
        "other filter": fed_by(nearest),
        "flipped": fed.flip(-1),
        "other order": fed.flip(0),
        "not finite": fed * torch.nan,
    }


@pytest.mark.parametrize("fed", disagreements().values(), ids=disagreements())
def test_save_refuses_a_batch_that_the_service_would_prepare_otherwise(
    fed: Tensor, tmp_path: Path
) -> None:
    files = [tmp_path / f"{index}.png" for index in range(len(PICTURES))]
    for image, file in zip(PICTURES, files, strict=True):
        image.save(file)
    with pytest.raises(SettingsError, match=r"check: .* picture (\d) \(.*/\1.png\) with"):
        adapt(of_timm(), **OPTIONS).save(tmp_path / "checkpoint", check=(fed, files))
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("check", [None, 3, (), (torch.zeros(4, 3, 8, 8), PICTURES)])
def test_a_check_is_a_pair_of_tensors_and_as_many_pictures(check: Any, tmp_path: Path) -> None:
    fed = fed_by(timms_transform(of_timm()))
    for value in (check, (fed[:3], PICTURES), (fed[:0], [])):
        if value is not None:
            with pytest.raises(SettingsError, match="check: expected tensors"):
                adapt(of_timm(), **OPTIONS).save(tmp_path / "checkpoint", check=value)


def test_timms_own_configuration_of_a_model_is_accepted() -> None:
    vit = timm.create_model("test_vit")
    stated = adapt(vit, **OPTIONS, preprocessing=resolve_model_data_config(vit)).preprocessing
    assert stated == adapt(vit, **OPTIONS).preprocessing
    assert (stated.size, stated.shorter_side) == (160, 168)
    vit = timm.create_model("test_vit", img_size=SIZE)  # its configuration is still that of 160
    model = adapt(vit, **OPTIONS, preprocessing=resolve_model_data_config(vit))
    assert model.preprocessing == adapt(vit, **OPTIONS).preprocessing
    assert model.preprocessing.size == SIZE
