"""Export of mode det to PEFT: the backbone as a ViT of transformers, a folder for each adapter."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from eulerlora.backbones.transformers_models import ACTIVATIONS, VIT
from eulerlora.checkpoint.backbone import POSITIONS
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import CARD, Checkpoint
from eulerlora.checkpoint.safetensor_files import write_tensors
from eulerlora.exchange.members import (
    Member,
    State,
    check_options,
    members,
    scaled_output,
    without_layer_scale,
)
from eulerlora.exchange.peft_adapters import (
    LORA,
    PREFIX,
    TARGETS,
    VIT_BLOCKS,
    VIT_PROJECTIONS,
    TransformersVersion,
)
from eulerlora.exchange.readme import readme

BACKBONE = "backbone"
USE = """```python
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


def export_peft(checkpoint: Checkpoint, folder: Path, version: TransformersVersion = 5) -> None:
    """Writes `backbone`, `adapter_0` and so on, and a README, to an existing folder.

    version: of transformers, whose names the adapters have. Raises SettingsError for a backbone
    with an option that transformers' ViT does not have.
    """
    network = checkpoint.network
    settings = network.backbone.settings
    check_options(
        settings,
        "transformers",
        {
            "stem": "patch",
            "activation": ("gelu", "gelu-tanh", "quick-gelu"),
            "pre_norm": False,
            "registers": 0,
            "attention": "dot",
            "pooling": "class",
            "final_norm": ("tokens", "pooled"),
        },
    )
    exported = members(checkpoint)
    _write_backbone(checkpoint, folder / BACKBONE)
    for index, member in enumerate(exported):
        _write_adapter(checkpoint, member, folder / f"adapter_{index}", version)
    use = USE.format(count=len(exported), version=version)
    (folder / CARD).write_text(readme(checkpoint, "PEFT", use), encoding="utf-8")


def _write_backbone(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes a ViTForImageClassification whose head is zero; each adapter has its own."""
    backbone, config = checkpoint.network.backbone, checkpoint.config
    folder.mkdir()
    state = without_layer_scale(backbone.settings, backbone.state_dict())
    classes = len(config.classes)
    head = {
        "classifier.weight": torch.zeros(classes, backbone.settings.width),
        "classifier.bias": torch.zeros(classes),
    }
    tensors = {f"vit.{name}": tensor for name, tensor in vit_state(state).items()} | head
    write_tensors(folder / "model.safetensors", tensors, torch.float32, {"format": "pt"})
    _write_json(folder / "config.json", _vit_config(config))
    _write_json(folder / "preprocessor_config.json", _processor(config))


def vit_state(state: State) -> State:
    """Returns the parameters of a backbone by the names of transformers' ViT, as it saves them."""
    named = {
        VIT.class_token: state["class_token"],
        VIT.positions: state[POSITIONS],
        **_module(VIT.patches, "conv_proj", state),
        **_module(VIT.final_norm, "encoder.ln", state),
    }
    layers = {name.split(".")[2] for name in state if name.startswith("encoder.layers.")}
    for index in range(len(layers)):
        ours, theirs = f"encoder.layers.encoder_layer_{index}.", VIT.block.format(index)
        weights = state[f"{ours}self_attention.in_proj_weight"].chunk(3)
        biases = state[f"{ours}self_attention.in_proj_bias"].chunk(3)
        for name, weight, bias in zip(VIT.qkv, weights, biases, strict=True):
            named |= {f"{theirs}{name}.weight": weight, f"{theirs}{name}.bias": bias}
        for name, own in (
            (VIT.output, "self_attention.out_proj"),
            (VIT.norm_1, "ln_1"),
            (VIT.norm_2, "ln_2"),
            (VIT.mlp[0], "mlp.0"),
            (VIT.mlp[1], "mlp.3"),
        ):
            named |= _module(theirs + name, ours + own, state)
    return named


def _module(theirs: str, ours: str, state: State) -> dict[str, Tensor]:
    return {f"{theirs}.{part}": state[f"{ours}.{part}"] for part in ("weight", "bias")}


def _write_adapter(
    checkpoint: Checkpoint, member: Member, folder: Path, version: TransformersVersion
) -> None:
    original = checkpoint.network.backbone.state_dict()
    tensors = {
        f"{PREFIX}classifier.{name}": tensor for name, tensor in member.head.state_dict().items()
    }
    for index, block in enumerate(member.blocks):
        scaled = scaled_output(block, original, index)
        prefix = PREFIX + VIT_BLOCKS[version].format(index)
        for module, down, up in zip(VIT_PROJECTIONS[version], scaled.down, scaled.up, strict=True):
            tensors |= {f"{prefix}{module}.{LORA[0]}": down, f"{prefix}{module}.{LORA[1]}": up}
    folder.mkdir()
    write_tensors(folder / "adapter_model.safetensors", tensors, torch.float32, {"format": "pt"})
    rank = checkpoint.network.settings.rank
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": f"../{BACKBONE}",
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS[version]),
        "modules_to_save": ["classifier"],
        "inference_mode": True,
    }
    _write_json(folder / "adapter_config.json", config)


def _vit_config(config: CheckpointConfig) -> dict[str, object]:
    shape = config.backbone.settings
    names = [label.name for label in config.classes]
    activation = next(name for name, own in ACTIVATIONS.items() if own == shape.activation)
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


def _processor(config: CheckpointConfig) -> dict[str, object]:
    """Returns the `preprocessor_config.json` that comes closest to the preprocessing."""
    given = config.preprocessing
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
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
