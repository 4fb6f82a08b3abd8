"""Tiny models of other libraries with random weights, saved as their libraries save them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import open_clip.timm_model
import timm
import torch
import transformers
from safetensors.torch import save_file
from timm.models import vision_transformer as timm_vit
from torch import Generator, Tensor, nn

SIZE, PATCH, WIDTH = 32, 8, 16
SHAPE = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIZE,
    "patch_size": PATCH,
}  # fmt: skip
TIMM = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": 2, "num_heads": 2}
Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class SavedModel:
    """A saved model. features: images, normalised if it asks for it, -> (n, width)."""

    model: nn.Module
    features: Features
    architecture: str


def randomised(model: nn.Module) -> Any:
    """Random parameters show any that is missing."""
    generator = Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def of_transformers(folder: Path, kind: str, **options: Any) -> SavedModel:
    """Saves a model of transformers. kind: the name of its classes, without Model and Config."""
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **options)
    model = randomised(getattr(transformers, f"{kind}Model")(config))
    model.save_pretrained(folder)
    pooled = kind == "CLIPVision"

    def features(images: Tensor) -> Tensor:
        output = model(pixel_values=images)
        result: Tensor = output.pooler_output if pooled else output.last_hidden_state[:, 0]
        return result

    return SavedModel(model, features, config.model_type)


def of_vit_classifier(folder: Path) -> SavedModel:
    config = transformers.ViTConfig(**SHAPE, intermediate_size=24, num_labels=3, qkv_bias=False)
    model = randomised(transformers.ViTForImageClassification(config))
    model.save_pretrained(folder)
    return SavedModel(model, lambda images: model.vit(images).last_hidden_state[:, 0], "vit")


def of_clip(folder: Path) -> SavedModel:
    text = {key: value for key, value in SHAPE.items() if key.startswith(("hidden", "num"))}
    config = transformers.CLIPConfig(
        vision_config=SHAPE | {"intermediate_size": 24},
        text_config=text | {"intermediate_size": 24, "vocab_size": 20},
    )
    model = randomised(transformers.CLIPModel(config))
    model.save_pretrained(folder)
    return SavedModel(model, lambda images: model.vision_model(images).pooler_output, "clip")


def of_timm(folder: Path, architecture: str = "vit_base_patch16_224", **options: Any) -> SavedModel:
    """Saves a model of timm, as `timm.models.save_for_hf` does."""
    arguments = TIMM | {"num_classes": 0} | options
    model = randomised(timm_vit.VisionTransformer(**_built(arguments)))
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    pretrained = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic"}
    stored = {key: arguments[key] for key in ("num_heads", "global_pool") if key in arguments}
    config = {
        "architecture": architecture,
        "model_args": stored,
        "pretrained_cfg": pretrained | {"input_size": [3, SIZE, SIZE], "crop_pct": 0.9},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return SavedModel(model, model, "timm")


def _built(arguments: dict[str, Any]) -> dict[str, Any]:
    """Adds the norm that timm has in its models with `pre_norm`."""
    if arguments.get("pre_norm"):
        arguments = arguments | {"norm_layer": partial(timm.layers.LayerNorm, eps=1e-5)}
    return arguments


def of_open_clip(folder: Path) -> SavedModel:
    """Saves an open_clip model with a timm trunk, as a pickle of tensors; its text tower is fake.

    The layout is that of BiomedCLIP.
    """
    tower = open_clip.timm_model.TimmModel(
        "vit_tiny_patch16_224", embed_dim=8, image_size=224, pool="", proj="linear"
    )
    tower = randomised(tower)
    folder.mkdir()
    state = {f"visual.{name}": tensor for name, tensor in tower.state_dict().items()}
    state |= {"logit_scale": torch.ones(()), "text.proj.weight": torch.ones(2, 2)}
    torch.save(state, folder / "open_clip_pytorch_model.bin")
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "", "timm_proj": "linear"}
    config = {
        "model_cfg": {"embed_dim": 8, "vision_cfg": vision | {"image_size": 224}},
        "preprocess_cfg": {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28]},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return SavedModel(tower, tower.trunk, "timm")


MODELS: dict[str, Callable[[Path], SavedModel]] = {
    "ViT": lambda folder: of_transformers(folder, "ViT", intermediate_size=24),
    "ViT, tanh GELU": lambda folder: of_transformers(
        folder, "ViT", intermediate_size=24, hidden_act="gelu_pytorch_tanh"
    ),
    "ViT with a classifier": of_vit_classifier,
    "DINOv2": lambda folder: of_transformers(folder, "Dinov2", mlp_ratio=2),
    "DINOv2, gated MLP": lambda folder: of_transformers(
        folder, "Dinov2", mlp_ratio=2, use_swiglu_ffn=True
    ),
    "DINOv2 with registers": lambda folder: of_transformers(
        folder, "Dinov2WithRegisters", mlp_ratio=2, num_register_tokens=3
    ),
    "DINOv3": lambda folder: of_transformers(
        folder, "DINOv3ViT", intermediate_size=24, num_register_tokens=4
    ),
    "DINOv3, gated MLP": lambda folder: of_transformers(
        folder, "DINOv3ViT", intermediate_size=24, use_gated_mlp=True, hidden_act="silu"
    ),
    "CLIP's vision tower": lambda folder: of_transformers(
        folder, "CLIPVision", intermediate_size=24
    ),
    "CLIP": of_clip,
    "timm": of_timm,
    "timm's CLIP": lambda folder: of_timm(
        folder, "vit_base_patch16_clip_quickgelu_224", pre_norm=True, act_layer="quick_gelu"
    ),
    "timm's DINOv2 with registers": lambda folder: of_timm(
        folder, init_values=1.0, reg_tokens=2, no_embed_class=True
    ),
    "timm, registers with positions": lambda folder: of_timm(folder, reg_tokens=2),
    "timm, mean over patches": lambda folder: of_timm(folder, global_pool="avg"),
    "timm, norm before the mean": lambda folder: of_timm(folder, global_pool="avg", fc_norm=False),
    "timm, gated MLP": lambda folder: of_timm(
        folder, mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU, mlp_ratio=3
    ),
    "open_clip with a timm trunk": of_open_clip,
}
