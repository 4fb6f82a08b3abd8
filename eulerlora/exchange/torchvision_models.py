"""Export of mode det to torchvision: one merged `VisionTransformer` for each adapter."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models
from torchvision.models.vision_transformer import ConvStemConfig

from eulerlora.checkpoint.files import CARD, Checkpoint
from eulerlora.checkpoint.safetensor_files import write_tensors
from eulerlora.exchange.members import Member, check_options, members, merged_state, readme
from eulerlora.settings import BackboneSettings

USE = """```python
import json, torch
from functools import partial
from safetensors.torch import load_file
from torchvision.models import VisionTransformer

config = json.load(open("config.json"))
models = []
for index in range(config["members"]):
    model = VisionTransformer(
        **config["arguments"], norm_layer=partial(torch.nn.LayerNorm, eps=config["norm_epsilon"])
    )
    model.load_state_dict(load_file(f"member_{index}.safetensors"))
    models.append(model.eval())
probabilities = torch.stack([model(images).softmax(-1) for model in models]).mean(0)
```"""
STEM = """

This backbone has a convolutional stem: pass `conv_stem_configs` too, with these channels, kernel
size 3, stride 2 and no norm: """


def merged_model(checkpoint: Checkpoint, member: Member) -> models.VisionTransformer:
    """Returns torchvision's model of one adapter, with its head. Raises SettingsError."""
    settings = checkpoint.network.backbone.settings
    check_options(
        settings,
        "torchvision",
        {
            "activation": "gelu",
            "pre_norm": False,
            "registers": 0,
            "attention": "dot",
            "pooling": "class",
            "final_norm": ("tokens", "pooled"),
        },
    )
    model = empty_model(settings, member.head.out_features)
    head = {f"heads.head.{name}": tensor for name, tensor in member.head.state_dict().items()}
    model.load_state_dict(merged_state(checkpoint, member) | head)
    return model.eval().requires_grad_(False)


def empty_model(settings: BackboneSettings, classes: int) -> models.VisionTransformer:
    """Returns torchvision's model of this shape with new weights."""
    no_norm: Any = None  # torchvision's annotation forgets it
    stem = [
        ConvStemConfig(channels, 3, 2, norm_layer=no_norm) for channels in settings.stem_channels
    ]
    return models.VisionTransformer(
        **_arguments(settings, classes),
        norm_layer=partial(nn.LayerNorm, eps=settings.norm_epsilon),
        conv_stem_configs=stem or None,
    )


def export_torchvision(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the state dict of each member, the arguments of their constructor, and a README."""
    exported = [merged_model(checkpoint, member) for member in members(checkpoint)]
    for index, model in enumerate(exported):
        path = folder / f"member_{index}.safetensors"
        write_tensors(path, model.state_dict(), torch.float32, {})
    settings = checkpoint.network.backbone.settings
    classes = [label.name for label in checkpoint.config.classes]
    config = {
        "members": len(exported),
        "classes": classes,
        "arguments": _arguments(settings, len(classes)),
        "norm_epsilon": settings.norm_epsilon,
    }
    channels = settings.stem_channels
    use = USE + (STEM + ", ".join(map(str, channels)) + "." if channels else "")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / CARD).write_text(readme(checkpoint, "torchvision", use), encoding="utf-8")


def _arguments(settings: BackboneSettings, classes: int) -> dict[str, int]:
    return {
        "image_size": settings.image_size,
        "patch_size": settings.patch_size,
        "num_layers": settings.layers,
        "num_heads": settings.heads,
        "hidden_dim": settings.width,
        "mlp_dim": settings.mlp_width,
        "num_classes": classes,
    }
