"""Our training steps and the naive loop: gradients, parameters and peak memory."""

import pytest
import torch
from torch import Generator

from eulerlora.sampling.masks import draw_trajectories
from eulerlora.settings import BackboneSettings
from eulerlora_lab.benchmarks.training_step import (
    DESCRIPTIONS,
    NaiveStep,
    peak_bytes,
    training_step,
)
from eulerlora_lab.benchmarks.workload import SMALL_NETWORK, Workload, random_network


def load(images: int = 2) -> Workload:
    return Workload.of(random_network(SMALL_NETWORK), SMALL_NETWORK.samples, images)


@pytest.mark.parametrize("method", ["one-batch", "micro-batches"])
def test_our_steps_have_the_gradients_of_the_naive_loop(method) -> None:
    ours, naive = training_step(method, load(images=4)), NaiveStep(load(images=4))
    settings = ours.network.settings
    unstacked = draw_trajectories(4, 2, settings, Generator().manual_seed(5))
    ours.backward(unstacked)
    naive.backward(unstacked)
    for adapter, member in enumerate(naive.members):
        for block, lora_block in zip(ours.network.blocks, member.blocks, strict=True):
            for index, linear in enumerate(lora_block.projections.values()):
                for actual, expected in (
                    (linear.lora_down.weight.grad, block.down.grad[index, adapter]),
                    (linear.lora_up.weight.grad, block.up.grad[index, adapter].T),
                ):
                    assert expected.abs().max() > 0
                    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)
        expected = ours.network.heads.weight.grad[adapter]
        torch.testing.assert_close(member.head.weight.grad, expected, rtol=1e-3, atol=1e-5)


def test_every_step_changes_adapters_and_heads_and_draws_new_coefficients() -> None:
    for method in DESCRIPTIONS:
        step = training_step(method, load())
        parameters = [p for group in step.optimiser.param_groups for p in group["params"]]
        before = [parameter.detach().clone() for parameter in parameters]
        state = step.generator.get_state()
        step()
        assert not torch.equal(step.generator.get_state(), state)
        assert all(
            not torch.equal(first, second) for first, second in zip(before, parameters, strict=True)
        )
        assert sum(p.numel() for p in parameters) == sum(
            p.numel() for _, p in step.network.adapter_parameters()
        )


def test_a_step_needs_at_least_the_activations_of_its_backward_pass() -> None:
    """The lower bound is the size of the inputs of the MLP activations of all blocks."""
    backbone = BackboneSettings(
        image_size=64, patch_size=8, layers=4, heads=2, width=64, mlp_width=512
    )
    sizes = SMALL_NETWORK.model_copy(update={"backbone": backbone})
    images = 4
    rows = images * sizes.trajectories
    minimum = 4 * rows * backbone.tokens * backbone.mlp_width * backbone.layers
    actual = peak_bytes("one-batch", sizes, images, torch.device("cpu"))
    assert minimum < actual < 40 * minimum
