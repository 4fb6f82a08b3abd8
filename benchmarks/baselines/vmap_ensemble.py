"""Baseline: a `torch.func.vmap` ensemble of ordinary LoRA modules."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from benchmarks.baselines.naive import LoRAVisionTransformer
from training.fit.optimisation import attention_kernels

Ensemble = Callable[[Tensor, Tensor], Tensor]


def vmap_ensemble(members: Sequence[LoRAVisionTransformer], samples: int) -> Ensemble:
    """Returns a function (images, coefficients) -> logits of all trajectories.

    The members of the ensemble are the trajectories. vmap batches adapters, heads and
    coefficients, but not the frozen weights (`in_dims` None). On a CPU, attention uses plain
    products, because vmap has no batching rule for the fused kernel and would loop over members.
    Shapes are those of `benchmarks.baselines.naive.naive_logits`.
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
