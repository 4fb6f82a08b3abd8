"""Baseline for deterministic mode: backbones with merged weights."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eulerlora.nn.attention import AttentionAdapters
from eulerlora.nn.backbone import EncoderBlock
from eulerlora.nn.network import AdaptedVisionTransformer


@torch.no_grad()
def merged_members(network: AdaptedVisionTransformer) -> list[nn.Sequential]:
    """Returns a model for each adapter, with W0 + B A in every adapted projection, and its head.

    Every model is a full copy of the backbone.
    """
    members = []
    for adapter in range(network.settings.adapters):
        member = copy.deepcopy(network.backbone)
        for frozen, adapters in zip(member.encoder.layers, network.blocks, strict=True):
            assert isinstance(frozen, EncoderBlock)
            assert isinstance(adapters, AttentionAdapters)
            updates = adapters.up[:, adapter].mT @ adapters.down[:, adapter]  # (4, width, width)
            packed = frozen.self_attention.in_proj_weight
            assert packed is not None
            packed.add_(updates[:3].flatten(0, 1))
            frozen.self_attention.out_proj.weight.add_(updates[3])
        head = nn.Linear(member.settings.width, network.heads.bias.shape[1])
        head.weight.copy_(network.heads.weight[adapter])
        head.bias.copy_(network.heads.bias[adapter])
        members.append(nn.Sequential(member, head).eval())
    return members


@torch.inference_mode()
def merged_logits(members: Sequence[nn.Sequential], images: Tensor) -> Tensor:
    """Returns logits (n, adapters, classes) from one pass for each adapter."""
    return torch.stack([member(images) for member in members], dim=1)
