"""`adapt` on the Vision Transformers of torchvision, timm and transformers."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from peft import LoraConfig, get_peft_model
from timm.models import eva as timm_eva
from timm.models import vision_transformer as timm_vit
from torch import Generator, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import VisionTransformer

from eulerlora import EulerLoRA, adapt, summarise, trajectory_loss
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import ImageError, SettingsError
from tests.eulerlora.exchange.sources import (
    MODELS,
    PATCH,
    SHAPE,
    SIZE,
    TIMM,
    WIDTH,
    SavedModel,
    randomised,
)

TINY = {"rank": 4, "min_rank": 2, "classes": 3}
IMAGES = torch.rand(3, 3, SIZE, SIZE, generator=Generator().manual_seed(0))


def of_torchvision() -> nn.Module:
    return randomised(VisionTransformer(SIZE, PATCH, 2, 2, WIDTH, 24))


def saved_torchvision(_: Path) -> SavedModel:
    """The features are the logits of a head that is the identity."""
    model = of_torchvision()

    def features(images: torch.Tensor) -> torch.Tensor:
        without_head = copy.deepcopy(model)
        without_head.heads = nn.Identity()
        result: torch.Tensor = without_head(images)
        return result

    return SavedModel(model, features, "torchvision")


@pytest.mark.parametrize(("rank", "least"), [(20, 10), (8, 4), (5, 3), (1, 1)])
def test_half_of_the_rank_is_active_at_least_unless_stated(rank: int, least: int) -> None:
    settings = adapt(of_torchvision(), rank, classes=2).network.settings
    stored = settings.model_dump(mode="json")
    assert (stored["rank"], stored["min_rank"]) == (rank, least)
    stated = adapt(of_torchvision(), rank, min_rank=1, classes=2).network.settings
    assert stated.min_rank == 1


BUILDERS = {
    "torchvision": saved_torchvision,
    **{
        name: MODELS[name]
        for name in (
            "timm", "timm's DINOv2 with registers", "ViT with a classifier", "DINOv2", "DINOv3",
            "CLIP's vision tower",
        )
    },
}  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_new_adapters_leave_the_features_of_the_original(
    build: Callable[[Path], SavedModel], tmp_path: Path
) -> None:
    saved = build(tmp_path / "source")
    vit = saved.model.train()
    before = {key: tensor.clone() for key, tensor in vit.state_dict().items()}
    model = adapt(vit, **TINY, generator=Generator().manual_seed(1)).eval()
    assert vit.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in vit.state_dict().items())
    vit.eval()
    expected = saved.features(IMAGES)
    heads = model.network.heads
    logits = torch.einsum("nd,acd->nac", expected, heads.weight) + heads.bias
    torch.testing.assert_close(model(IMAGES), logits, rtol=0, atol=1e-4)


@torch.no_grad()
def test_another_image_size_has_the_positions_of_the_library(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also that nothing is printed, such as a progress bar of transformers."""
    vit = MODELS["DINOv2"](tmp_path / "source").model
    capfd.readouterr()
    model = adapt(vit, **TINY, image_size=48)
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.is_progress_bar_enabled()
    images = torch.rand(2, 3, 48, 48, generator=Generator().manual_seed(0))
    expected = vit(pixel_values=images).last_hidden_state[:, 0]
    heads = model.network.heads
    logits = torch.einsum("nd,acd->nac", expected, heads.weight) + heads.bias
    torch.testing.assert_close(model(images), logits, rtol=0, atol=1e-4)


@pytest.fixture
def model() -> Any:
    """Two adapters that answer differently."""
    adapted = adapt(of_torchvision(), **TINY)
    with torch.no_grad():
        for block in adapted.network.blocks:
            block.up.normal_(std=0.3, generator=Generator().manual_seed(2))
    return adapted


def test_logits_are_those_of_every_trajectory(model) -> None:
    generator = Generator().manual_seed(3)
    logits = model(IMAGES, mode="stoch", samples=5, generator=generator)
    assert logits.shape == (3, 2 * 5, 3)
    assert len(logits[0].unique(dim=0)) == 10
    again = model(IMAGES[1:2], mode="stoch", samples=5, generator=generator.manual_seed(3))
    torch.testing.assert_close(again[0], logits[1])
    assert model(IMAGES).shape == (3, 2, 3)
    summary = summarise(logits.detach().softmax(dim=-1))
    assert summary.probabilities.shape == (3, 3)
    assert (summary.mutual_information > 0).all()


def test_only_adapters_and_heads_are_trained(model) -> None:
    trajectory_loss(model(IMAGES, mode="stoch"), torch.tensor([0, 1, 2])).backward()
    gradients = {n for n, p in model.named_parameters() if p.grad is not None}
    assert gradients == {n for n, p in model.named_parameters() if "backbone" not in n}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("seeded", [True, False])
def test_activation_checkpointing_leaves_the_gradients(
    model, seeded: bool, reentrant: bool
) -> None:
    """Also of several passes of one generator in a graph, with the loss in the second run."""
    images, labels = IMAGES.clone().requires_grad_(), torch.tensor([0, 1, 2])
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(5)
        generator = Generator().manual_seed(3) if seeded else None

        def loss(images: torch.Tensor, generator: Generator | None = generator) -> torch.Tensor:
            logits = model(images, mode="stoch", samples=2, generator=generator)
            return trajectory_loss(logits, labels)

        model.zero_grad()
        total = torch.zeros(())
        for _ in range(2):
            if checkpointing:
                total = total + checkpoint(loss, images, use_reentrant=reentrant)
            else:
                total = total + loss(images)
        total.backward()
        gradients.append([p.grad for n, p in model.named_parameters() if "backbone" not in n])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_that_would_draw_anew_is_refused(model, reentrant: bool) -> None:
    images = IMAGES.clone().requires_grad_()
    options = {"use_reentrant": reentrant, "preserve_rng_state": False}
    logits = checkpoint(lambda x: model(x, mode="stoch"), images, **options)
    with pytest.raises(SettingsError, match="preserve_rng_state"):
        logits.sum().backward()


def test_a_prediction_of_a_generator_leaves_that_of_torch(model) -> None:
    before = torch.get_rng_state()
    with torch.no_grad():
        model.eval()(IMAGES, mode="stoch", generator=Generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loss_is_the_mean_cross_entropy_of_the_trajectories() -> None:
    logits = torch.randn(4, 6, 3, generator=Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, 1])
    losses = torch.stack(
        [F.cross_entropy(logits[:, t], labels, reduction="none") for t in range(6)]
    )
    torch.testing.assert_close(trajectory_loss(logits, labels), losses.mean())
    soft = F.one_hot(labels, 3).float()
    actual = trajectory_loss(logits, soft, reduction="none")
    torch.testing.assert_close(actual, losses.mean(dim=0))


LOGITS = torch.zeros(4, 6, 3)
LABELS = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize(
    ("logits", "targets", "key"),
    [
        (LOGITS, LABELS[:, None], "targets"),
        (LOGITS, LABELS[:3], "targets"),
        (LOGITS, LABELS[0], "targets"),
        (LOGITS, torch.zeros(4, 2), "targets"),
        (LOGITS, LABELS + 1, "targets"),
        (LOGITS, LABELS - 1, "targets"),
        (LOGITS, LABELS.int(), "targets"),
        (LOGITS, LABELS.float(), "targets"),
        (LOGITS, LABELS.tolist(), "targets"),
        (LOGITS, LABELS.numpy(), "targets"),
        (LOGITS[:, 0], LABELS, "logits"),
        (LOGITS[:0], LABELS[:0], "logits"),
        (LOGITS[:, :0], LABELS, "logits"),
        (LOGITS.numpy(), LABELS, "logits"),
    ],
)
def test_the_loss_refuses_other_shapes_and_types(logits: Any, targets: Any, key: str) -> None:
    with pytest.raises(SettingsError, match=f"^{key}: "):
        trajectory_loss(logits, targets)


def test_labels_out_of_range_reach_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "one_hot", pytest.fail)  # on a GPU, it would fail much later
    with pytest.raises(SettingsError, match="got 1 to"):
        trajectory_loss(LOGITS, LABELS + 1)


def test_a_saved_model_answers_as_in_the_loop(model, tmp_path: Path) -> None:
    colours = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    mean, std = (torch.tensor(colours[key])[:, None, None] for key in ("mean", "std"))
    model.save(tmp_path / "checkpoint", Preprocessing(size=SIZE, **colours))
    loaded = EulerLoRA.load(tmp_path / "checkpoint", device="cpu")
    settings = AdapterSettings(adapters=2, rank=4, min_rank=2, init_gain=0.3)
    assert loaded.network.settings == settings
    prediction = loaded.predict(IMAGES)
    expected = model((IMAGES - mean) / std).softmax(dim=-1).detach().double()
    torch.testing.assert_close(
        torch.as_tensor(prediction.trajectories), expected, rtol=0, atol=1e-5, check_dtype=False
    )


class Changed(VisionTransformer):
    """A network with the parameters of torchvision's and other features."""

    def _process_input(self, x: torch.Tensor) -> torch.Tensor:
        patches: torch.Tensor = super()._process_input(x)
        return 2 * patches


def of_transformers(**options: object) -> Any:
    return transformers.ViTModel(transformers.ViTConfig(**SHAPE | options, intermediate_size=24))


def with_lora(vit: Any) -> Any:
    return get_peft_model(vit, LoraConfig(target_modules=["q_proj"]))


def quantized(vit: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao moves to another package
        result: nn.Module = torch.ao.quantization.quantize_dynamic(vit, {nn.Linear})
    return result


def not_finite(vit: nn.Module) -> nn.Module:
    with torch.no_grad():
        next(vit.parameters()).fill_(torch.nan)
    return vit


@pytest.mark.parametrize(
    ("vit", "options", "key"),
    [
        (of_torchvision, {"min_rank": 5}, "min_rank"),
        (of_torchvision, {"rank": 0}, "rank"),
        (of_torchvision, {"classes": 1}, "classes"),
        (of_torchvision, {"image_size": 0}, "image_size"),
        (of_torchvision, {"image_size": 30}, "image_size"),
        (of_torchvision, {"classes": ["a", "a"]}, "classes"),
        (of_torchvision, {"classes": [0, 1]}, "name"),
        (of_torchvision, {"classes": "cat"}, "classes"),
        (lambda: nn.Linear(2, 2), {}, "vit"),
        (nn.Identity, {}, "without parameters"),
        (lambda: "vit_b_16", {}, "got str"),
        (lambda: of_torchvision().half(), {}, r"float16; give vit\.float"),
        (lambda: of_torchvision().bfloat16(), {}, r"bfloat16; give vit\.float"),
        (lambda: of_torchvision().double(), {}, r"float64; give vit\.float"),
        (lambda: of_torchvision().to("meta"), {}, "device meta"),
        (lambda: quantized(of_torchvision()), {}, "quantised"),
        (lambda: torch.compile(of_torchvision()), {}, "_orig_mod"),
        (lambda: nn.DataParallel(of_torchvision()), {}, r"vit\.module"),
        (lambda: nn.Sequential(nn.Identity(), of_torchvision()), {}, "several modules"),
        (lambda: adapt(of_torchvision(), **TINY), {}, "has adapters"),
        (lambda: with_lora(of_transformers()), {}, "merge_and_unload"),
        (lambda: with_lora(of_transformers()).base_model.model, {}, "merge_and_unload"),
        (lambda: of_transformers(image_size=(32, 64)), {}, r"image_size=\(32, 64\)"),
        (lambda: of_transformers(patch_size=(8, 16)), {}, r"patch_size=\(8, 16\)"),
        (lambda: of_transformers(num_channels=1), {}, "3 channels"),
        (lambda: timm_vit.VisionTransformer(**TIMM | {"img_size": (16, 64)}), {}, "square"),
        (lambda: timm_vit.VisionTransformer(**TIMM | {"patch_size": (8, 16)}), {}, "square"),
        (lambda: timm_vit.VisionTransformer(**TIMM, in_chans=1), {}, "3 channels"),
        (lambda: not_finite(of_torchvision()), {}, "finite"),
        (of_torchvision, {"image_size": (32, 64)}, "image_size"),
        (lambda: randomised(Changed(SIZE, PATCH, 2, 2, WIDTH, 24)), {}, "features"),
        (lambda: timm_vit.VisionTransformer(**TIMM, qk_norm=True), {}, "tensor"),
        (lambda: timm_eva.Eva(**TIMM, use_abs_pos_emb=False, use_rot_pos_emb=True), {}, "rotary"),
        (lambda: timm.create_model("test_efficientnet"), {}, "patch_embed"),
        (lambda: transformers.BertModel(
            transformers.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1,
                                    intermediate_size=8, vocab_size=9)), {}, "bert"),
    ],
)  # fmt: skip
def test_other_networks_and_settings_are_refused(vit, options: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        adapt(vit(), **TINY | options)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_an_adapted_model_of_another_type_is_refused(
    model, kind: torch.dtype, tmp_path: Path
) -> None:
    model.to(kind)
    with pytest.raises(SettingsError, match="float32"):
        model(IMAGES.to(kind))
    with pytest.raises(SettingsError, match="float32"):
        model.save(tmp_path / "checkpoint", Preprocessing(size=SIZE))


@pytest.mark.parametrize(
    ("images", "options", "error"),
    [
        (IMAGES[:, :, :8], {}, ImageError),
        (IMAGES.byte(), {}, ImageError),
        (IMAGES.half(), {}, ImageError),
        (IMAGES.double(), {}, ImageError),
        (IMAGES[0], {}, ImageError),
        (IMAGES[:0], {}, ImageError),
        (IMAGES.numpy(), {}, ImageError),
        (b"bytes", {}, ImageError),
        (TensorDataset(IMAGES), {}, ImageError),
        (DataLoader(TensorDataset(IMAGES)), {}, ImageError),
        (IMAGES, {"samples": 2}, SettingsError),
        (IMAGES, {"mode": "stoch", "samples": 0}, SettingsError),
        (IMAGES, {"mode": "sample"}, SettingsError),
    ],
)
def test_a_call_refuses_bad_arguments(
    model, images: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        model(images, **options)
