"""Export of mode det: the adapters as separate members, in folders of PEFT, torchvision or ONNX.

In mode det, all coefficients of an adapter are 1: member a computes W0 + B_a A_a in each adapted
projection, and its own head. The answer of the checkpoint is the mean of the members'
probabilities. torchvision gets a merged `VisionTransformer` for each member; ONNX gets one graph
from resized images to mean probabilities, which ONNX Runtime runs for a comparison with the
checkpoint before the export is complete. PEFT gets the backbone as a ViT of transformers and a
folder for each adapter: LoRA, which has mode det, or EulerLoRA (`eulerlora.peft`) with both modes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torchvision import models
from torchvision.models.vision_transformer import ConvStemConfig

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.checkpoint.weights import CARD_FILE, with_weights, write_tensors
from eulerlora.exchange.libraries import (
    LAW,
    MODULE_PREFIX,
    SAMPLED_TYPE,
    TRANSFORMERS_ACTIVATIONS,
    VIT_PROJECTIONS,
    TransformersVersion,
    vit_state,
)
from eulerlora.images.preprocess import normalise
from eulerlora.methods.registry import DEFAULT_METHOD
from eulerlora.nn.method import AttentionAdapters
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_contract.errors import NonFiniteError, SettingsError
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
_ONNX_FILE = "model.onnx"
_MAX_DIFFERENCE = 1e-4
"""Largest accepted difference of a probability between ONNX Runtime and PyTorch."""
_CHECKED_IMAGES = 3
_ONNX_USE = """```python
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(probabilities,) = session.run(None, {"images": images})
```

`images` is a float32 array (n, 3, size, size) in [0, 1]: the image after the resize of the
preprocessing below. The graph contains its mean, standard deviation and colour constancy."""


@dataclass(frozen=True)
class Member:
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
def members(checkpoint: Checkpoint) -> list[Member]:
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
        Member(down[:, :, adapter], up[:, :, adapter], _head(checkpoint, adapter))
        for adapter in range(network.settings.adapters)
    ]


def _without_layer_scale(settings: BackboneSettings, state: _State) -> _State:
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
def _merged_state(checkpoint: Checkpoint, member: Member) -> _State:
    backbone = checkpoint.network.backbone
    state = dict(_without_layer_scale(backbone.settings, backbone.state_dict()))
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
}
_FORMAT_OPTIONS: dict[str, dict[str, tuple[object, ...]]] = {
    "peft": _VIT_OPTIONS | {"stem": ("patch",), "activation": ("gelu", "gelu-tanh", "quick-gelu")},
    "torchvision": _VIT_OPTIONS,
    "onnx": {},
}
"""For each format of `eulerlora export`, the options of a backbone that it can hold."""


def _check_format(settings: BackboneSettings, name: str) -> None:
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


def _readme(checkpoint: Checkpoint, library: str, use: str, sampled: bool = False) -> str:
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
{"modes det and stoch" if sampled else "mode det"}, with {count} adapter(s), whose probabilities
are averaged.

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


def merged_model(checkpoint: Checkpoint, member: Member) -> models.VisionTransformer:
    """Torchvision's model of one adapter, with its head. Raises SettingsError."""
    settings = checkpoint.network.backbone.settings
    _check_format(settings, "torchvision")
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
    model.load_state_dict(_merged_state(checkpoint, member) | head)
    return model.eval().requires_grad_(False)


def export_torchvision(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the state dict of each member, the arguments of their constructor, and a README."""
    exported = [merged_model(checkpoint, member) for member in members(checkpoint)]
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
    _write_json(folder / "config.json", config)
    write_text(folder / CARD_FILE, _readme(checkpoint, "torchvision", use))


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


class _MergedNetwork(nn.Module):
    """The members of a checkpoint in mode det, with merged weights.

    Maps images (n, 3, size, size) in [0, 1] to mean probabilities (n, classes).
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        network = checkpoint.network
        settings = network.backbone.settings.model_copy(update={"layer_scale": False})
        merged = members(checkpoint)
        self.preprocessing = network.preprocessing
        self.backbones = nn.ModuleList(
            with_weights(settings, _merged_state(checkpoint, member)) for member in merged
        )
        self.heads = nn.ModuleList(member.head for member in merged)

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 3, size, size) in [0, 1]."""
        inputs = normalise(images, self.preprocessing)
        pairs = zip(self.backbones, self.heads, strict=True)
        probabilities = [head(backbone(inputs)).softmax(dim=-1) for backbone, head in pairs]
        return torch.stack(probabilities).mean(dim=0)


def export_onnx(checkpoint: Checkpoint, folder: Path) -> float:
    """Writes `model.onnx` and a README; returns the largest difference from the checkpoint.

    Raises SettingsError if the extra is not installed, and NonFiniteError if ONNX Runtime gives
    other probabilities.
    """
    try:
        import onnx  # noqa: F401, PLC0415
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except ImportError as error:
        raise SettingsError(
            "expected onnx, onnxruntime and onnxscript; pip install 'eulerlora[onnx]'"
        ) from error
    network = _MergedNetwork(checkpoint).eval().requires_grad_(False)
    size = checkpoint.config.preprocessing.size
    images = torch.rand(_CHECKED_IMAGES, 3, size, size, generator=Generator().manual_seed(0))
    batch = torch.export.Dim("batch", min=1)
    torch.onnx.export(
        network,
        (images,),
        folder / _ONNX_FILE,
        input_names=["images"],
        output_names=["probabilities"],
        dynamo=True,
        dynamic_shapes={"images": {0: batch}},
        verbose=False,
    )
    difference = _difference(network, images, folder / _ONNX_FILE)
    if not difference <= _MAX_DIFFERENCE:
        raise NonFiniteError(
            f"ONNX Runtime: expected the checkpoint's probabilities within {_MAX_DIFFERENCE}, got "
            f"a difference of {difference:.2g}"
        )
    write_text(folder / CARD_FILE, _readme(checkpoint, "ONNX", _ONNX_USE))
    return difference


@torch.inference_mode()
def _difference(network: _MergedNetwork, images: Tensor, path: Path) -> float:
    import onnxruntime  # noqa: PLC0415 - an extra

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for batch in (images[:1], images):
        (actual,) = session.run(None, {"images": batch.numpy()})
        worst = max(worst, float((torch.from_numpy(actual) - network(batch)).abs().max()))
    return worst


_VIT_BLOCKS: dict[TransformersVersion, str] = {4: "vit.encoder.layer.{}.", 5: "vit.layers.{}."}
_TARGETS: dict[TransformersVersion, tuple[str, ...]] = {
    4: ("query", "key", "value", "attention.output.dense"),
    5: ("q_proj", "k_proj", "v_proj", "o_proj"),
}
"""PEFT's `target_modules`, which are suffixes of the names of modules."""


_BACKBONE_FOLDER = "backbone"
_PEFT_USE = """```python
import torch
from peft import PeftModel
from transformers import ViTForImageClassification

probabilities = []
for index in range({count}):
    backbone = ViTForImageClassification.from_pretrained("backbone")
    model = PeftModel.from_pretrained(backbone, f"adapter_{{index}}").eval()
    probabilities.append(model(pixel_values=images).logits.softmax(-1))
probabilities = torch.stack(probabilities).mean(0)
```

The names of the tensors are those of transformers {version}. `images` are the output of
`ViTImageProcessor.from_pretrained("backbone")`, whose filter differs from the checkpoint's by
rounding to 8 bits."""


_SAMPLED_USE = """

`import eulerlora.peft` first, which registers the method. With
`with eulerlora.peft.sampling(model, samples=4, seed=0):` around the call of the model, each
image has 4 rows of logits; without it the model answers in mode det."""


def export_peft(
    checkpoint: Checkpoint, folder: Path, version: TransformersVersion = 5, sampled: bool = False
) -> None:
    """Writes `backbone`, `adapter_0` and so on, and a README, to an existing folder.

    Adapters have the names of this version of transformers; sampled ones are of `eulerlora.peft`,
    others LoRA. Raises SettingsError for a method or a backbone that cannot be expressed.
    """
    _check_format(checkpoint.network.backbone.settings, "peft")
    if sampled and checkpoint.config.method != DEFAULT_METHOD:
        raise SettingsError("--sampled: expected a checkpoint whose projections are all sampled")
    exported = members(checkpoint)
    _write_backbone(checkpoint, folder / _BACKBONE_FOLDER)
    for index, member in enumerate(exported):
        _write_adapter(checkpoint, member, folder / f"adapter_{index}", version, sampled)
    use = _PEFT_USE.format(count=len(exported), version=version) + (_SAMPLED_USE if sampled else "")
    write_text(folder / CARD_FILE, _readme(checkpoint, "PEFT", use, sampled))


def _write_backbone(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes a ViTForImageClassification whose head is zero; each adapter has its own."""
    backbone, config = checkpoint.network.backbone, checkpoint.config
    folder.mkdir()
    state = _without_layer_scale(backbone.settings, backbone.state_dict())
    classes = len(config.classes)
    head = {
        "classifier.weight": torch.zeros(classes, backbone.settings.width),
        "classifier.bias": torch.zeros(classes),
    }
    tensors = {f"vit.{name}": tensor for name, tensor in vit_state(state).items()} | head
    write_tensors(folder / "model.safetensors", tensors, torch.float32, {"format": "pt"})
    _write_json(folder / "config.json", _vit_config(checkpoint))
    _write_json(folder / "preprocessor_config.json", _processor(config.preprocessing))


def _write_adapter(
    checkpoint: Checkpoint,
    member: Member,
    folder: Path,
    version: TransformersVersion,
    sampled: bool,
) -> None:
    tensors = {
        f"{MODULE_PREFIX}classifier.{name}": tensor
        for name, tensor in member.head.state_dict().items()
    }
    for index, factors in enumerate(zip(member.down, member.up, strict=True)):
        prefix = MODULE_PREFIX + _VIT_BLOCKS[version].format(index)
        for module, down, up in zip(VIT_PROJECTIONS[version], *factors, strict=True):
            tensors[f"{prefix}{module}.lora_A.weight"] = down
            tensors[f"{prefix}{module}.lora_B.weight"] = up
    folder.mkdir()
    write_tensors(folder / "adapter_model.safetensors", tensors, torch.float32, {"format": "pt"})
    settings = checkpoint.network.settings
    rank, law = settings.rank, {name: getattr(settings, name) for name in LAW}
    config = {
        "peft_type": SAMPLED_TYPE if sampled else "LORA",
        "task_type": None,
        "base_model_name_or_path": f"../{_BACKBONE_FOLDER}",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_TARGETS[version]),
        "modules_to_save": ["classifier"],
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", config | (law if sampled else {}))


def _vit_config(checkpoint: Checkpoint) -> dict[str, object]:
    shape, names = checkpoint.network.backbone.settings, checkpoint.config.class_names
    activation = next(
        name for name, own in TRANSFORMERS_ACTIVATIONS.items() if own == shape.activation
    )
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.mlp_width,
        "hidden_act": activation,
        "layer_norm_eps": shape.norm_epsilon,
        "image_size": shape.image_size,
        "patch_size": shape.patch_size,
        "num_channels": 3,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def _processor(given: Preprocessing) -> dict[str, object]:
    """The `preprocessor_config.json` that comes closest to the preprocessing."""
    square = {"height": given.size, "width": given.size}
    cropped = given.shorter_side is not None
    return {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": given.shorter_side} if cropped else square,
        "resample": 2 if given.interpolation.startswith("bilinear") else 3,
        "do_center_crop": cropped,
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": given.mean,
        "image_std": given.std,
    }


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")
