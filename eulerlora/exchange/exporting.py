"""Export of mode det: the adapters as separate members, each a merged network of torchvision.

In mode det, all coefficients of an adapter are 1: member a computes W0 + B_a A_a in each adapted
projection, and its own head. The answer of the checkpoint is the mean of the members'
probabilities. `eulerlora.plugins` has the exports to PEFT and ONNX.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.vision_transformer import ConvStemConfig

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.checkpoint.weights import CARD_FILE, write_tensors
from eulerlora.nn.method import AttentionAdapters
from eulerlora.settings import BackboneSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.output_files import write_text

_State = dict[str, Tensor]
_TORCHVISION_USE = """```python
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
```

`images` is a float32 tensor (n, 3, size, size): the image after the resize of the preprocessing
below, in [0, 1], minus `mean` and divided by `std` of each channel, which `config.json` has too."""
_STEM = """

This backbone has a convolutional stem: pass `conv_stem_configs` too, with these channels, kernel
size 3, stride 2 and no norm: """


@dataclass(frozen=True)
class ExportedAdapter:
    """One adapter of a checkpoint.

    Attributes:
        down: (blocks, 4, rank, width), the matrices A of Q, K, V and O.
        up: (blocks, 4, width, rank), their B; that of O includes the layer scale of the backbone.
        head: A linear layer from features to logits, which includes the checkpoint's temperature.
    """

    down: Tensor
    up: Tensor
    head: nn.Linear


@torch.no_grad()
def exported_adapters(checkpoint: Checkpoint) -> list[ExportedAdapter]:
    """Splits a checkpoint into its adapters, in order.

    Raises:
        SettingsError: For a method whose mode det is not W0 + B A with linear heads.
    """
    network = checkpoint.network
    if not network.method.exportable:
        raise SettingsError(
            "expected a checkpoint with adapters and linear heads, got the method "
            f"{network.method.settings.name}"
        )
    blocks = [block for block in network.blocks if isinstance(block, AttentionAdapters)]
    down = torch.stack([block.det_down for block in blocks])  # (blocks, 4, adapters, rank, width)
    up = torch.stack([block.up.mT for block in blocks])  # (blocks, 4, adapters, width, rank)
    if network.backbone.settings.layer_scale:
        layers = network.backbone.encoder.blocks()
        factors = torch.stack([layer.get_parameter("scale_1.weight") for layer in layers])
        up[:, 3] *= factors[:, None, :, None]
    return [
        ExportedAdapter(down[:, :, adapter], up[:, :, adapter], _head(checkpoint, adapter))
        for adapter in range(network.settings.adapters)
    ]


def without_layer_scale(settings: BackboneSettings, state: _State) -> _State:
    """Multiplies the layer scales of a backbone into the output projection and the MLP's last
    layer.
    """
    if not settings.layer_scale:
        return state
    folded = {name: tensor for name, tensor in state.items() if ".scale_" not in name}
    last = "mlp.weights_out" if settings.activation == "swiglu" else "mlp.3"
    for index in range(settings.layers):
        prefix = f"encoder.layers.encoder_layer_{index}."
        for scale, linear in (("scale_1", "self_attention.out_proj"), ("scale_2", last)):
            factor = state[f"{prefix}{scale}.weight"]
            for part in ("weight", "bias"):
                name = f"{prefix}{linear}.{part}"
                folded[name] = factor.view(-1, *[1] * (state[name].ndim - 1)) * state[name]
    return folded


@torch.no_grad()
def merged_state(checkpoint: Checkpoint, member: ExportedAdapter) -> dict[str, Tensor]:
    """The tensors of the backbone with the products of one adapter, without layer scales."""
    backbone = checkpoint.network.backbone
    state = dict(without_layer_scale(backbone.settings, backbone.state_dict()))
    for index, products in enumerate(member.up @ member.down):  # (4, width, width)
        prefix = f"encoder.layers.encoder_layer_{index}.self_attention."
        for name, update in (
            ("in_proj_weight", products[:3].flatten(0, 1)),
            ("out_proj.weight", products[3]),
        ):
            state[prefix + name] = state[prefix + name] + update
    return state


_VIT_OPTIONS: dict[str, tuple[object, ...]] = {
    "activation": ("gelu",),
    "pre_norm": (False,),
    "registers": (0,),
    "attention": ("dot",),
    "pooling": ("class",),
    "final_norm": ("tokens", "pooled"),
    "positions": ("corners", "cells", "cells-antialias"),
}
_FORMAT_OPTIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "peft": _VIT_OPTIONS | {"stem": ("patch",), "activation": ("gelu", "gelu-tanh", "quick-gelu")},
    "torchvision": _VIT_OPTIONS,
    "onnx": {},
}
"""For each format of `eulerlora export`, the options of a backbone that it can hold."""


def check_format(settings: BackboneSettings, name: str) -> None:
    """Checks that a format of `eulerlora export` can hold a backbone.

    Raises:
        SettingsError: If it cannot, with the formats that can.
    """
    unsupported = _unsupported(settings, name)
    if unsupported:
        others = [other for other in _FORMAT_OPTIONS if not _unsupported(settings, other)]
        raise SettingsError(
            f"format {name}: cannot hold a backbone with {', '.join(unsupported)}; use --format "
            f"{' or '.join(others)}"
        )


def _unsupported(settings: BackboneSettings, name: str) -> list[str]:
    """Options of a backbone that a format cannot hold, such as "stem=convolution"."""
    return [
        f"{option}={getattr(settings, option)}"
        for option, values in _FORMAT_OPTIONS[name].items()
        if getattr(settings, option) not in values
    ]


@torch.no_grad()
def _head(checkpoint: Checkpoint, adapter: int) -> nn.Linear:
    heads, temperature = checkpoint.network.heads, checkpoint.config.temperature
    classes, width = heads.weight.shape[1:]
    head = nn.Linear(width, classes)
    head.weight.copy_(heads.weight[adapter] / temperature)
    head.bias.copy_(heads.bias[adapter] / temperature)
    return head.requires_grad_(False)


def export_readme(checkpoint: Checkpoint, library: str, use: str, sampled: bool = False) -> str:
    """Markdown: origin, what the export lacks, use and preprocessing.

    `use` is the section on use. `sampled`: the export has mode stoch.
    """
    stoch = (
        ""
        if sampled
        else f"**The stochastic mode cannot be expressed here.** {library} has no random "
        "coefficients, so this\nfolder gives neither sampled probabilities nor their mutual "
        "information. "
    )
    config = checkpoint.config
    preprocessing = config.preprocessing.model_dump(mode="json")
    colours = (
        "\n`colour_constancy` is applied after the resize and before the mean (eulerlora's "
        "`colour_constancy` module); this folder does not contain it.\n"
        if config.preprocessing.colour_constancy != "none"
        else ""
    )
    count = config.adapters.settings.adapters
    classes = "\n".join(f"{i}. `{label.name}`" for i, label in enumerate(config.classes))
    return f"""# {config.name} for {library}

Exported from the EulerLoRA checkpoint `{config.name}`, revision {checkpoint.revision}:
{"modes det and stoch" if sampled else "mode det"}, with {count} adapter{"s" * (count > 1)}, whose
probabilities are averaged.

{stoch}Thresholds, out-of-distribution scores and prediction sets of the checkpoint are not
exported. Use the checkpoint itself for those.

## Use

{use}

## Classes

{classes}

## Preprocessing

```json
{json.dumps(preprocessing, indent=2)}
```
{colours}"""


def _merged_model(checkpoint: Checkpoint, member: ExportedAdapter) -> models.VisionTransformer:
    """Torchvision's model of one adapter, with its head. Raises SettingsError."""
    settings = checkpoint.network.backbone.settings
    check_format(settings, "torchvision")
    no_norm: Any = None  # torchvision's annotation forgets it
    stem = [
        ConvStemConfig(channels, 3, 2, norm_layer=no_norm) for channels in settings.stem_channels
    ]
    model = models.VisionTransformer(
        **_arguments(settings, member.head.out_features),
        norm_layer=partial(nn.LayerNorm, eps=settings.norm_epsilon),
        conv_stem_configs=stem or None,
    )
    head = {f"heads.head.{name}": tensor for name, tensor in member.head.state_dict().items()}
    model.load_state_dict(merged_state(checkpoint, member) | head)
    return model.eval().requires_grad_(False)


def export_torchvision(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the state dict of each member, the arguments of their constructor, and a README."""
    exported = [_merged_model(checkpoint, member) for member in exported_adapters(checkpoint)]
    for index, model in enumerate(exported):
        path = folder / f"member_{index}.safetensors"
        write_tensors(path, model.state_dict(), torch.float32, {})
    settings = checkpoint.network.backbone.settings
    classes = checkpoint.config.class_names
    config = {
        "members": len(exported),
        "classes": classes,
        "arguments": _arguments(settings, len(classes)),
        "norm_epsilon": settings.norm_epsilon,
        "mean": checkpoint.config.preprocessing.mean,
        "std": checkpoint.config.preprocessing.std,
    }
    channels = settings.stem_channels
    use = _TORCHVISION_USE + (_STEM + ", ".join(map(str, channels)) + "." if channels else "")
    write_json(folder / "config.json", config)
    write_text(folder / CARD_FILE, export_readme(checkpoint, "torchvision", use))


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


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Writes an indented JSON file."""
    write_text(path, json.dumps(content, indent=2) + "\n")
