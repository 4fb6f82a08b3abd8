"""Baseline: the computation of LoRA-Ensemble's published code, for inference.

Muehlematter, Halbheer et al., "LoRA-Ensemble: Efficient Uncertainty Modelling for Self-Attention
Networks", 2024 (github.com/prs-eth/LoRA-Ensemble, be52ff5). Every image is repeated for every
member. Each attention projection maps its rows through `vmap` over the stacked state of the
members' modules, which includes a copy of the frozen weights for each member. The MLPs run on all
rows; the heads are mapped as the projections are.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from eulerlora.sampling.masks import PROJECTIONS
from eulerlora_lab.benchmarks.baselines.naive import LoRABlock, LoRALinear, LoRAVisionTransformer


class _MemberLinear(nn.Module):
    """A linear layer with a low-rank update, without coefficients."""

    def __init__(self, lora: LoRALinear) -> None:
        super().__init__()
        self.frozen, self.lora_down, self.lora_up = lora.frozen, lora.lora_down, lora.lora_up

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (..., in_features)."""
        outputs: Tensor = self.frozen(inputs) + self.lora_up(self.lora_down(inputs))
        return outputs


class _StackedMembers:
    """The modules of all members as one function of (members, ...)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._module = modules[0]
        self._state = stack_module_state(list(modules))

    def __call__(self, inputs: Tensor) -> Tensor:
        def of_member(state: tuple[dict[str, Tensor], dict[str, Tensor]], rows: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self._module, state, (rows,))
            return outputs

        return vmap(of_member)(self._state, inputs)


class LoRAEnsemble:
    """An ensemble of ordinary LoRA models with the same frozen layers."""

    def __init__(self, members: Sequence[LoRAVisionTransformer]) -> None:
        self._first, self._count = members[0], len(members)
        self._blocks = [cast("LoRABlock", block) for block in members[0].blocks]
        self._projections = [
            {name: _StackedMembers(_projections(members, index, name)) for name in PROJECTIONS}
            for index in range(len(self._blocks))
        ]
        self._head = _StackedMembers([member.head for member in members])

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        """Logits (n, members, classes) of images (n, 3, image_size, image_size)."""
        repeated = images.repeat(self._count, 1, 1, 1)  # member by member
        patches = self._first.conv_proj(repeated).flatten(2).transpose(1, 2)
        class_token = self._first.class_token.expand(len(repeated), -1, -1)
        tokens = torch.cat([class_token, patches], dim=1) + self._first.positions
        for block, projections in zip(self._blocks, self._projections, strict=True):
            normal = self._by_member(block.ln_1(tokens))
            query, key, value = (
                projections[name](normal)
                .flatten(0, 1)
                .unflatten(-1, (block.heads, -1))
                .transpose(1, 2)
                for name in PROJECTIONS[:3]
            )
            context = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
            attended = projections["output"](self._by_member(context)).flatten(0, 1)
            tokens = tokens + attended
            tokens = tokens + block.mlp(block.ln_2(tokens))
        features = self._first.ln(tokens)[:, 0]
        logits: Tensor = self._head(self._by_member(features))
        return logits.transpose(0, 1)

    def _by_member(self, rows: Tensor) -> Tensor:
        """(members * n, ...) -> (members, n, ...)."""
        by_member: Tensor = rows.unflatten(0, (self._count, -1))
        return by_member


def _projections(
    members: Sequence[LoRAVisionTransformer], index: int, name: str
) -> list[_MemberLinear]:
    blocks = [cast("LoRABlock", member.blocks[index]) for member in members]
    return [_MemberLinear(cast("LoRALinear", block.projections[name])) for block in blocks]
