"""What every exported format has in common: the adapters as separate members, and a README.

In mode det, all coefficients of an adapter are 1: member a computes W0 + B_a A_a in each adapted
projection, and its own head. The answer of the checkpoint is the mean of the members'
probabilities.
"""

import json
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.errors import SettingsError
from eulerlora.nn.attention import AttentionAdapters
from eulerlora.settings import BackboneSettings

State = dict[str, Tensor]


@dataclass(frozen=True)
class MemberBlock:
    """The directions of one adapter in one block.

    down: (4, rank, width), the matrices A of Q, K, V and O. up: (4, width, rank), their B.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class Member:
    """One adapter of a checkpoint.

    head: a linear layer from features to logits, which includes the checkpoint's temperature.
    """

    blocks: tuple[MemberBlock, ...]
    head: nn.Linear


def members(checkpoint: Checkpoint) -> list[Member]:
    """Returns the members of a checkpoint, in the order of its adapters.

    Raises SettingsError for a method whose mode det is not W0 + B A with linear heads.
    """
    network = checkpoint.network
    _check_exportable(checkpoint)
    return [
        Member(
            tuple(_block(block, adapter) for block in network.blocks),
            _head(checkpoint, adapter),
        )
        for adapter in range(network.settings.adapters)
    ]


def without_layer_scale(settings: BackboneSettings, state: State) -> State:
    """Returns the parameters of a backbone with its layer scales multiplied into the weights.

    The factors are those of the output projection and of the last layer of the MLP.
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


def scaled_output(block: MemberBlock, state: State, index: int) -> MemberBlock:
    """Returns a block whose O adapter includes the layer scale of the backbone, if it has one."""
    factor = state.get(f"encoder.layers.encoder_layer_{index}.scale_1.weight")
    if factor is None:
        return block
    up = block.up.clone()
    up[3] *= factor[:, None]
    return MemberBlock(block.down, up)


@torch.no_grad()
def merged_state(checkpoint: Checkpoint, member: Member) -> State:
    """Returns the backbone's parameters with W0 + B A, without layer scale."""
    backbone = checkpoint.network.backbone
    original = backbone.state_dict()
    state = without_layer_scale(backbone.settings, original)
    for index, block in enumerate(member.blocks):
        updates = scaled_output(block, original, index)
        products = updates.up @ updates.down  # (4, width, width)
        prefix = f"encoder.layers.encoder_layer_{index}.self_attention."
        for name, update in (
            ("in_proj_weight", products[:3].flatten(0, 1)),
            ("out_proj.weight", products[3]),
        ):
            state[prefix + name] = state[prefix + name] + update
    return state


def check_options(settings: BackboneSettings, library: str, allowed: dict[str, object]) -> None:
    """Raises SettingsError for an option that a library's Vision Transformer does not have.

    allowed: by option, the values that it has.
    """
    for option, values in allowed.items():
        value = getattr(settings, option)
        if value not in (values if isinstance(values, tuple) else (values,)):
            raise SettingsError(
                f"expected a backbone with {option}={values}, got {value}: {library}'s Vision "
                "Transformer has no such option"
            )


def _check_exportable(checkpoint: Checkpoint) -> None:
    method = checkpoint.network.method
    if not method.exportable:
        raise SettingsError(
            "expected a checkpoint with adapters and linear heads, got the method "
            f"{method.settings.name}"
        )


def _block(adapters: nn.Module, adapter: int) -> MemberBlock:
    assert isinstance(adapters, AttentionAdapters)
    return MemberBlock(adapters.det_down[:, adapter].detach(), adapters.up[:, adapter].detach().mT)


@torch.no_grad()
def _head(checkpoint: Checkpoint, adapter: int) -> nn.Linear:
    heads, temperature = checkpoint.network.heads, checkpoint.config.temperature
    classes, width = heads.weight.shape[1:]
    head = nn.Linear(width, classes)
    head.weight.copy_(heads.weight[adapter] / temperature)
    head.bias.copy_(heads.bias[adapter] / temperature)
    return head.requires_grad_(False)


def readme(checkpoint: Checkpoint, library: str, use: str) -> str:
    """Returns Markdown: origin, what the export lacks, use and preprocessing. use: Markdown."""
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
mode det, with {count} adapter(s), whose probabilities are averaged.

**The stochastic mode cannot be expressed here.** {library} has no random coefficients, so this
folder gives neither sampled probabilities nor their mutual information. Thresholds,
out-of-distribution scores and prediction sets of the checkpoint are not exported either. Use the
checkpoint itself for those.

## Use

{use}

## Classes

{classes}

## Preprocessing

```json
{json.dumps(preprocessing, indent=2)}
```
{colours}"""
