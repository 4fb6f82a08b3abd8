"""The same trajectories as a `torch.func.vmap` ensemble of ordinary LoRA modules."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from benchmarks.baselines.naive import LoRAVisionTransformer
from training.fit.optimisation import attention_kernels

Ensemble = Callable[[Tensor, Tensor], Tensor]


def vmap_ensemble(members: Sequence[LoRAVisionTransformer], samples: int) -> Ensemble:
    """(images, own coefficients) -> logits of all trajectories in one vectorised call.

    The ensemble's members are the trajectories: their adapters and heads are stacked and batched
    along with the coefficients; the frozen weights are not (`in_dims` None). On a CPU attention
    takes the plain products, since vmap has no rule for the fused kernel and would loop over the
    members. Shapes as in `benchmarks.baselines.naive.naive_logits`.
    """
    each = [members[index // samples] for index in range(samples * len(members))]
    trained = [dict(_trained(member)) for member in each]
    stacked = {name: torch.stack([own[name] for own in trained]) for name in trained[0]}
    frozen = {
        name: tensor for name, tensor in members[0].state_dict().items() if name not in stacked
    }

    def member_logits(own: dict[str, Tensor], images: Tensor, coefficients: Tensor) -> Tensor:
        logits: Tensor = functional_call(members[0], frozen | own, (images, coefficients))
        return logits

    batched = vmap(member_logits, in_dims=(0, None, 0), out_dims=1)

    @torch.inference_mode()
    def logits(images: Tensor, own: Tensor) -> Tensor:
        with attention_kernels(images.device):
            return batched(stacked, images, own)

    return logits


def _trained(member: LoRAVisionTransformer) -> list[tuple[str, Tensor]]:
    return [
        (name, parameter.detach())
        for name, parameter in member.named_parameters()
        if parameter.requires_grad
    ]
