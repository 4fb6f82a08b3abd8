"""The names of a library's tensors, and their conversion to those of a backbone."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eulerlora.checkpoint.backbone import POSITIONS
from eulerlora.errors import SettingsError
from eulerlora.settings import BackboneSettings


@dataclass(frozen=True)
class Layout:
    """The names of the modules and parameters of a Vision Transformer.

    block: prefix of a block, with its index as {}; the names from `norm_1` to `scale_2` follow it.
    qkv: of the separate projections, or one packed projection. ignored: prefixes of tensors that
    the features do not need, such as a classification head.
    """

    class_token: str
    positions: str
    patches: str
    block: str
    norm_1: str
    qkv: tuple[str, ...]
    output: str
    norm_2: str
    mlp: tuple[str, str]
    final_norm: str
    registers: str = ""
    pre_norm: str = ""
    scale_1: str = ""
    scale_2: str = ""
    ignored: tuple[str, ...] = ()


class Reader:
    """Takes tensors out of a state dict, by the names of a layout.

    tensors: of a library. Raises SettingsError if a tensor is missing or has another shape.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._left = dict(tensors)

    def take(self, name: str) -> Tensor:
        """Returns the tensor and removes it."""
        if name not in self._left:
            raise SettingsError(f"expected a tensor {name}, got none")
        return self._left.pop(name)

    def take_any(self, name: str) -> Tensor | None:
        """Returns the tensor and removes it, None if there is none."""
        return self._left.pop(name, None)

    def linear(self, name: str) -> dict[str, Tensor]:
        """Returns weight and bias of a module; a missing bias is zero."""
        weight = self.take(f"{name}.weight")
        bias = self.take_any(f"{name}.bias")
        return {"weight": weight, "bias": torch.zeros(len(weight)) if bias is None else bias}

    def check_empty(self, ignored: tuple[str, ...]) -> None:
        """Raises SettingsError for a tensor that was not taken and is not ignored."""
        for name in self._left:
            if not name.startswith(ignored):
                raise SettingsError(
                    f"unknown tensor {name}: the features of this model are not those of its "
                    "architecture"
                )


def converted(
    tensors: Mapping[str, Tensor], layout: Layout, settings: BackboneSettings
) -> dict[str, Tensor]:
    """Returns the parameters of a backbone of this shape. Raises SettingsError."""
    reader = Reader(tensors)
    state = {
        "class_token": reader.take(layout.class_token).view(1, 1, -1),
        **_named("conv_proj", reader.linear(layout.patches)),
    }
    positions = reader.take(layout.positions)
    positions = positions.view(1, *positions.shape[-2:])
    if settings.registers:
        registers = reader.take(layout.registers).view(1, settings.registers, -1)
        positions, registers = _register_positions(positions, registers, settings)
        state["register_tokens"] = registers
    state[POSITIONS] = _with_class_position(positions, settings)
    if settings.pre_norm:
        state |= _named("encoder.ln_pre", reader.linear(layout.pre_norm))
    for index in range(settings.layers):
        block = _block(reader, layout, layout.block.format(index), settings)
        state |= _named(f"encoder.layers.encoder_layer_{index}", block)
    if settings.final_norm != "none":
        state |= _named("encoder.ln", reader.linear(layout.final_norm))
    reader.check_empty(layout.ignored)
    return state


def _block(
    reader: Reader, layout: Layout, prefix: str, settings: BackboneSettings
) -> dict[str, Tensor]:
    projections = [reader.linear(prefix + name) for name in layout.qkv]
    names = ("weights_in", "weights_out") if settings.activation == "swiglu" else ("0", "3")
    block = {
        "self_attention.in_proj_weight": torch.cat([part["weight"] for part in projections]),
        "self_attention.in_proj_bias": torch.cat([part["bias"] for part in projections]),
        **_named("self_attention.out_proj", reader.linear(prefix + layout.output)),
        **_named("ln_1", reader.linear(prefix + layout.norm_1)),
        **_named("ln_2", reader.linear(prefix + layout.norm_2)),
        **_named(f"mlp.{names[0]}", reader.linear(prefix + layout.mlp[0])),
        **_named(f"mlp.{names[1]}", reader.linear(prefix + layout.mlp[1])),
    }
    if settings.layer_scale:
        block["scale_1.weight"] = reader.take(prefix + layout.scale_1)
        block["scale_2.weight"] = reader.take(prefix + layout.scale_2)
    return block


def _named(prefix: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in parts.items()}


def _register_positions(
    positions: Tensor, registers: Tensor, settings: BackboneSettings
) -> tuple[Tensor, Tensor]:
    """Adds the positions of registers, if they have any, to the registers.

    Returns the other positions and the registers.
    """
    if positions.shape[1] != settings.tokens:
        return positions, registers
    first = 1 + settings.registers
    own = positions[:, 1:first]
    return torch.cat([positions[:, :1], positions[:, first:]], dim=1), registers + own


def _with_class_position(positions: Tensor, settings: BackboneSettings) -> Tensor:
    """Returns positions of class token and patches; a missing position of the token is zero."""
    if positions.shape[1] == settings.tokens - settings.registers - 1:
        return torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
    return positions
