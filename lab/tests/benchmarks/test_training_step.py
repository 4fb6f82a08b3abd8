"""Our training steps and the naive loop: gradients, parameters and peak memory."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Generator

from eulerlora.sampling.masks import draw_trajectories
from eulerlora.settings import BackboneSettings
from eulerlora_lab.benchmarks import training_step
from eulerlora_lab.benchmarks.workload import SMALL, Plan

CPU = torch.device("cpu")
Steps = Callable[[str], Sequence[Any]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The steps of a method and of the naive loop that are timed, on four images."""

    def timed(method: str) -> Sequence[Any]:
        given: list[Any] = []

        def seconds(works: Sequence[Any], *_: object) -> list[list[float]]:
            given.extend(works)
            return [[1.0], [1.0]]

        monkeypatch.setattr(training_step, "alternating_seconds", seconds)
        sizes = SMALL.model_copy(update={"images": 4})
        training_step.step_time(Plan(sizes, CPU), method)  # type: ignore[arg-type]
        return given

    return timed


METHODS = pytest.mark.parametrize("method", ["one-batch", "micro-batches"])


@METHODS
def test_our_steps_have_the_gradients_of_the_naive_loop(method: str, steps: Steps) -> None:
    ours, naive = steps(method)
    settings = ours.network.settings
    coefficients = draw_trajectories(4, 2, settings, Generator().manual_seed(5))
    ours.backward(coefficients)
    naive.backward(coefficients)
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


@METHODS
def test_every_step_changes_adapters_and_heads_and_draws_new_coefficients(
    method: str, steps: Steps
) -> None:
    for step in steps(method):
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
    network, images = SMALL.large.model_copy(update={"backbone": backbone}), 4
    sizes = SMALL.model_copy(update={"large": network, "images": images})
    rows = images * network.trajectories
    minimum = 4 * rows * backbone.tokens * backbone.mlp_width * backbone.layers
    result = training_step.step_memory(Plan(sizes, CPU), "one-batch")
    for side in (result.ours, result.reference):
        mebibytes, unit, *_ = side.split()
        assert unit == "MiB"
        assert minimum < 2**20 * float(mebibytes) < 40 * minimum
