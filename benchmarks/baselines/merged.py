"""Baseline for deterministic mode: torchvision models with merged weights."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import EncoderBlock

from eulerlora.adapted_attention import AttentionAdapters
from eulerlora.vision_transformer import AdaptedVisionTransformer


@torch.no_grad()
def merged_members(network: AdaptedVisionTransformer) -> list[VisionTransformer]:
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
            packed += updates[:3].flatten(0, 1)
            frozen.self_attention.out_proj.weight += updates[3]
        head = nn.Linear(member.hidden_dim, network.heads.bias.shape[1])
        head.weight.copy_(network.heads.weight[adapter])
        head.bias.copy_(network.heads.bias[adapter])
        member.heads = nn.Sequential(head)
        members.append(member.eval())
    return members


@torch.inference_mode()
def merged_logits(members: Sequence[VisionTransformer], images: Tensor) -> Tensor:
    """Returns logits (n, adapters, classes) from one pass for each adapter."""
    return torch.stack([member(images) for member in members], dim=1)
