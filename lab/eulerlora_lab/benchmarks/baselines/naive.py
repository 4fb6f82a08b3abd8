"""Baseline: ordinary LoRA modules on separate Q, K, V and O.

One forward pass for each trajectory, or a `torch.func.vmap` ensemble of all of them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from eulerlora.nn.backbone import EncoderBlock, VisionTransformer
from eulerlora.nn.method import AttentionAdapters
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.sampling.masks import PROJECTIONS
from training.optimisation.step import attention_kernels


class LoRALinear(nn.Module):
    """A frozen linear layer with a low-rank update."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.lora_down = nn.Linear(frozen.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, inputs: Tensor, coefficients: Tensor) -> Tensor:
        """(n, tokens, out_features).

        inputs: (n, tokens, in_features). coefficients: (n, rank), or (1, rank) for all images.
        """
        directions = self.lora_down(inputs) * coefficients.unsqueeze(1)
        outputs: Tensor = self.frozen(inputs) + self.lora_up(directions)
        return outputs


class LoRABlock(nn.Module):
    """A pre-norm transformer block with LoRA modules in the four attention projections."""

    def __init__(self, frozen: EncoderBlock, projections: Sequence[nn.Linear], rank: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.mlp = frozen.ln_1, frozen.ln_2, frozen.mlp
        self.heads = frozen.self_attention.num_heads
        self.projections = nn.ModuleDict(
            {
                name: LoRALinear(linear, rank)
                for name, linear in zip(PROJECTIONS, projections, strict=True)
            }
        )

    def forward(self, tokens: Tensor, coefficients: Tensor) -> Tensor:
        """(n, tokens, width).

        tokens: (n, tokens, width). coefficients: (n, 4, rank), or (1, 4, rank) for all images.
        """
        normal = self.ln_1(tokens)
        query, key, value = (
            self.projections[name](normal, coefficients[:, index])
            .unflatten(-1, (self.heads, -1))
            .transpose(1, 2)
            for index, name in enumerate(PROJECTIONS[:3])
        )
        context = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        tokens = tokens + self.projections["output"](context, coefficients[:, -1])
        outputs: Tensor = tokens + self.mlp(self.ln_2(tokens))
        return outputs


class LoRAVisionTransformer(nn.Module):
    """A frozen backbone with one adapter and its head."""

    def __init__(
        self,
        backbone: VisionTransformer,
        projections: Sequence[Sequence[nn.Linear]],
        rank: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.conv_proj = backbone.conv_proj
        self.class_token = backbone.class_token
        self.positions = backbone.encoder.pos_embedding
        self.blocks = nn.ModuleList(
            LoRABlock(frozen, linears, rank)
            for frozen, linears in zip(backbone.encoder.blocks(), projections, strict=True)
        )
        self.ln = backbone.encoder.ln
        self.head = nn.Linear(backbone.settings.width, classes)

    def forward(self, images: Tensor, coefficients: Tensor) -> Tensor:
        """Logits (n, classes) of one trajectory of every image.

        images: (n, 3, image_size, image_size). coefficients: (n, blocks, 4, rank), or
        (1, blocks, 4, rank) for all images.
        """
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(images), -1, -1)
        tokens = torch.cat([class_token, patches], dim=1) + self.positions
        for index, block in enumerate(self.blocks):
            tokens = block(tokens, coefficients[:, index])
        logits: Tensor = self.head(self.ln(tokens[:, 0]))
        return logits


def ordinary_members(network: AdaptedVisionTransformer) -> list[LoRAVisionTransformer]:
    """An ordinary LoRA model for each adapter, with the same weights.

    The models share the frozen layers of `network`; Q, K, V and the adapters are copies.
    """
    frozen = [
        _separate_projections(layer.self_attention) for layer in network.backbone.encoder.blocks()
    ]
    classes, rank = network.heads.weight.shape[1], network.settings.rank
    members = []
    for adapter in range(network.settings.adapters):
        member = LoRAVisionTransformer(network.backbone, frozen, rank, classes)
        with torch.no_grad():
            _copy_adapter(network, adapter, member)
        members.append(member.to(network.heads.weight.device))
    return members


@torch.inference_mode()
def naive_logits(
    members: Sequence[LoRAVisionTransformer], images: Tensor, coefficients: Tensor
) -> Tensor:
    """Logits (n, trajectories, classes) from one forward pass for each trajectory.

    coefficients: (trajectories, n or 1, blocks, 4, rank), ordered by adapter.
    """
    samples = len(coefficients) // len(members)
    passes = [
        members[index // samples](images, of_trajectory)
        for index, of_trajectory in enumerate(coefficients)
    ]
    return torch.stack(passes, dim=1)


def _copy_adapter(
    network: AdaptedVisionTransformer, adapter: int, member: LoRAVisionTransformer
) -> None:
    for attention, block in zip(network.blocks, member.blocks, strict=True):
        assert isinstance(attention, AttentionAdapters)
        assert isinstance(block, LoRABlock)
        for index, linear in enumerate(block.projections.values()):
            assert isinstance(linear, LoRALinear)
            linear.lora_down.weight.copy_(attention.down[index, adapter])
            linear.lora_up.weight.copy_(attention.up[index, adapter].T)
    member.head.weight.copy_(network.heads.weight[adapter])
    member.head.bias.copy_(network.heads.bias[adapter])


def _separate_projections(attention: nn.MultiheadAttention) -> list[nn.Linear]:
    """Torchvision's packed Q, K and V as linear layers, and O."""
    width = attention.embed_dim
    assert attention.in_proj_weight is not None
    packed = zip(attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3), strict=True)
    linears = []
    for weight, bias in packed:
        linear = nn.Linear(width, width, device="meta")
        linear.weight, linear.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        linears.append(linear)
    return [*linears, attention.out_proj]


Ensemble = Callable[[Tensor, Tensor], Tensor]


def vmap_ensemble(members: Sequence[LoRAVisionTransformer], samples: int) -> Ensemble:
    """A function (images, coefficients) -> logits of all trajectories.

    The members of the ensemble are the trajectories. vmap batches adapters, heads and
    coefficients, but not the frozen weights (`in_dims` None). On a CPU, attention uses plain
    products, because vmap has no batching rule for the fused kernel and would loop over members.
    Shapes are those of `naive_logits`.
    """
    trajectories = [members[index // samples] for index in range(samples * len(members))]
    trained = [dict(_trained(member)) for member in trajectories]
    stacked = {name: torch.stack([tensors[name] for tensors in trained]) for name in trained[0]}
    frozen = {
        name: tensor for name, tensor in members[0].state_dict().items() if name not in stacked
    }

    def member_logits(trained: dict[str, Tensor], images: Tensor, coefficients: Tensor) -> Tensor:
        logits: Tensor = functional_call(members[0], frozen | trained, (images, coefficients))
        return logits

    batched = vmap(member_logits, in_dims=(0, None, 0), out_dims=1)

    @torch.inference_mode()
    def logits(images: Tensor, coefficients: Tensor) -> Tensor:
        with attention_kernels(images.device):
            return batched(stacked, images, coefficients)

    return logits


def _trained(member: LoRAVisionTransformer) -> list[tuple[str, Tensor]]:
    return [
        (name, parameter.detach())
        for name, parameter in member.named_parameters()
        if parameter.requires_grad
    ]
