"""The adapted projection against naive loops, merged weights and the paper's recursion."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eulerlora.nn.attention import adapted_linear
from eulerlora.sampling.masks import draw_masks, terminal_coefficients

ROWS, TOKENS, WIDTH, OUT, RANK = 3, 5, 8, 6, 4


class Layer:
    """A projection with directions and inputs, all random with a scale of about 1."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])

        self.weight, self.bias = normal(OUT, WIDTH), normal(OUT)
        self.down, self.up = normal(RANK, WIDTH), normal(RANK, OUT)  # A, and B transposed
        self.inputs = normal(ROWS, TOKENS, WIDTH) * math.sqrt(WIDTH)
        self.coefficients = normal(ROWS, RANK) * 2

    def adapted(self, coefficients: Tensor) -> Tensor:
        return adapted_linear(self.inputs, self.weight, self.bias, self.down, self.up, coefficients)


def euler_steps(layer: Layer, state: Tensor, masks: Tensor, sigma: float) -> Tensor:
    """Returns Y_T of the paper's compensated dynamics, computed step by step.

    state: Y_0 = h, (rows, tokens, out). masks: (steps, rows, rank). Returns Y_T.
    """
    duration = 1 / len(masks)
    frozen = F.linear(layer.inputs, layer.weight, layer.bias)
    learned = layer.inputs @ layer.down.T @ layer.up
    for mask in masks:
        fluctuation = torch.zeros_like(state)
        for k in range(RANK):
            projected = (layer.inputs @ layer.down[k])[..., None] * layer.up[k]  # b_k a_k^T C
            fluctuation += (mask[:, k] - 1)[:, None, None] * projected
        state = state + duration * (frozen + learned) + sigma * math.sqrt(duration) * fluctuation
    return state


def test_the_formula_equals_naive_loops_over_rows_tokens_and_directions() -> None:
    layer = Layer()
    expected = torch.empty(ROWS, TOKENS, OUT)
    for row in range(ROWS):
        for token in range(TOKENS):
            x = layer.inputs[row, token]
            y = layer.weight @ x + layer.bias
            for k in range(RANK):
                y = y + layer.coefficients[row, k] * layer.up[k] * (layer.down[k] @ x)
            expected[row, token] = y
    torch.testing.assert_close(layer.adapted(layer.coefficients), expected)


def naive(layer: Layer) -> Tensor:
    learned = (layer.inputs @ layer.down.T * layer.coefficients[:, None]) @ layer.up
    return layer.inputs @ layer.weight.T + layer.bias + learned


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_neither_the_memory_layout_nor_the_grad_mode_changes_the_result(
    mode: Callable[[], AbstractContextManager[None]], contiguous: bool
) -> None:
    layer = Layer()
    expected = naive(layer)
    if not contiguous:
        layer.inputs = layer.inputs.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    inputs = layer.inputs.clone()
    with mode():
        torch.testing.assert_close(layer.adapted(layer.coefficients), expected)
    assert torch.equal(layer.inputs, inputs)


def test_the_gradients_are_those_of_the_naive_formula() -> None:
    ours, reference = Layer(), Layer()
    for layer in (ours, reference):
        for tensor in (layer.inputs, layer.down, layer.up, layer.coefficients):
            tensor.requires_grad_()
    ours.adapted(ours.coefficients).square().sum().backward()
    naive(reference).square().sum().backward()
    for name in ("inputs", "down", "up", "coefficients"):
        torch.testing.assert_close(getattr(ours, name).grad, getattr(reference, name).grad)


def test_zero_coefficients_leave_the_frozen_projection() -> None:
    layer = Layer()
    frozen = F.linear(layer.inputs, layer.weight, layer.bias)
    assert torch.equal(layer.adapted(torch.zeros(ROWS, RANK)), frozen)


def test_coefficients_of_one_equal_the_merged_weight_without_a_scale_factor() -> None:
    layer = Layer()
    merged = F.linear(layer.inputs, layer.weight + layer.up.T @ layer.down, layer.bias)
    torch.testing.assert_close(layer.adapted(torch.ones(ROWS, RANK)), merged)


def test_each_row_equals_the_weight_merged_with_its_coefficients() -> None:
    layer = Layer()
    actual = layer.adapted(layer.coefficients)
    for row in range(ROWS):
        merged = layer.weight + layer.up.T @ torch.diag(layer.coefficients[row]) @ layer.down
        torch.testing.assert_close(actual[row], F.linear(layer.inputs[row], merged, layer.bias))


def test_a_row_does_not_depend_on_the_coefficients_of_other_rows() -> None:
    layer = Layer()
    changed = layer.coefficients.clone()
    changed[1:] += 1
    actual, other = layer.adapted(layer.coefficients), layer.adapted(changed)
    assert torch.equal(actual[0], other[0])
    assert not torch.allclose(actual[1:], other[1:])


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0, 2.0])
def test_the_closed_form_equals_the_euler_recursion(steps: int, sigma: float) -> None:
    generator = torch.Generator().manual_seed(steps)
    layer = Layer(seed=steps)
    masks = draw_masks((steps, ROWS), RANK, 2, generator)
    residual = torch.randn(ROWS, TOKENS, OUT, generator=generator)
    closed = residual + layer.adapted(terminal_coefficients(masks, sigma))
    stepwise = euler_steps(layer, residual, masks, sigma)
    torch.testing.assert_close(closed, stepwise, rtol=0, atol=1e-5)


def test_the_closed_form_equals_the_recursion_without_a_residual() -> None:
    layer = Layer()
    masks = draw_masks((2, ROWS), RANK, 2, torch.Generator().manual_seed(0))
    stepwise = euler_steps(layer, torch.zeros(ROWS, TOKENS, OUT), masks, 1.0)
    closed = layer.adapted(terminal_coefficients(masks, 1.0))
    torch.testing.assert_close(closed, stepwise, rtol=0, atol=1e-5)
