"""Adapted attention against naive loops, merged weights, torch and the paper's recursion."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from eulerlora.nn.attention import (
    DistanceAttention,
    adapted_attention,
    adapted_linear,
    attend,
)
from eulerlora.nn.method import AttentionAdapters
from eulerlora.sampling.masks import AdapterSettings, draw_masks, terminal_coefficients
from tests.conftest import random_backbone

ROWS, TOKENS, WIDTH, HEADS, OUT, RANK = 4, 5, 12, 3, 6, 4


class Layer:
    """A projection with directions and inputs, all random with a scale of about 1."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])

        self.weight, self.bias = normal(OUT, WIDTH), normal(OUT)
        self.down, self.up = normal(1, RANK, WIDTH), normal(1, RANK, OUT)  # A, and B transposed
        self.inputs = normal(ROWS, TOKENS, WIDTH) * math.sqrt(WIDTH)
        self.coefficients = normal(ROWS, RANK) * 2

    def adapted(self, coefficients: Tensor) -> Tensor:
        return adapted_linear(self.inputs, self.weight, self.bias, self.down, self.up, coefficients)


def euler_steps(layer: Layer, state: Tensor, masks: Tensor, sigma: float) -> Tensor:
    """Y_T of the paper's compensated dynamics, step by step.

    state: Y_0 = h, (rows, tokens, out). masks: (steps, rows, rank).
    """
    duration = 1 / len(masks)
    frozen = F.linear(layer.inputs, layer.weight, layer.bias)
    (down,), (up,) = layer.down, layer.up
    learned = layer.inputs @ down.T @ up
    for mask in masks:
        fluctuation = torch.zeros_like(state)
        for k in range(RANK):
            projected = (layer.inputs @ down[k])[..., None] * up[k]  # b_k a_k^T C
            fluctuation += (mask[:, k] - 1)[:, None, None] * projected
        state = state + duration * (frozen + learned) + sigma * math.sqrt(duration) * fluctuation
    return state


def naive(layer: Layer) -> Tensor:
    (down,), (up,) = layer.down, layer.up
    learned = (layer.inputs @ down.T * layer.coefficients[:, None]) @ up
    return layer.inputs @ layer.weight.T + layer.bias + learned


def test_the_gradients_are_those_of_the_naive_formula() -> None:
    ours, reference = Layer(), Layer()
    for layer in (ours, reference):
        for tensor in (layer.inputs, layer.down, layer.up, layer.coefficients):
            tensor.requires_grad_()
    ours.adapted(ours.coefficients).square().sum().backward()
    naive(reference).square().sum().backward()
    for name in ("inputs", "down", "up", "coefficients"):
        torch.testing.assert_close(getattr(ours, name).grad, getattr(reference, name).grad)


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


SETTINGS = AdapterSettings(adapters=2, rank=RANK, min_rank=2)


@pytest.fixture
def frozen() -> nn.MultiheadAttention:
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.normal_(std=0.3, generator=Generator().manual_seed(parameter.numel()))
    return attention


@pytest.fixture
def adapters() -> AttentionAdapters:
    made = AttentionAdapters(WIDTH, SETTINGS)
    with torch.no_grad():
        made.down.normal_(std=0.3, generator=Generator().manual_seed(0))
        made.up.normal_(std=0.3, generator=Generator().manual_seed(1))
    return made


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(
        ROWS,
        TOKENS,
        WIDTH,
        generator=Generator().manual_seed(2),
    )


def merged_weights(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, adapter: int, coefficients: Tensor
) -> list[Tensor]:
    """W0 + B diag(c) A of Q, K, V and O for the coefficients (4, rank) of one row."""
    weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
    return [
        weight + up[adapter].T @ torch.diag(own) @ down[adapter]
        for weight, down, up, own in zip(
            weights, adapters.down, adapters.up, coefficients, strict=True
        )
    ]


def naive_attention(frozen: nn.MultiheadAttention, weights: list[Tensor], tokens: Tensor) -> Tensor:
    """The softmax attention of one row, computed head by head."""
    biases = frozen.in_proj_bias.chunk(3)
    query, key, value = (tokens @ w.T + b for w, b in zip(weights[:3], biases, strict=True))
    size = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / math.sqrt(size)
        heads.append(scores.softmax(dim=-1) @ value[:, part])
    return torch.cat(heads, dim=-1) @ weights[3].T + frozen.out_proj.bias


@torch.no_grad()
def test_every_row_uses_its_coefficients_and_the_adapter_of_its_group(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, inputs: Tensor
) -> None:
    coefficients = 2 * torch.randn(ROWS, 4, RANK, generator=Generator().manual_seed(3))
    actual = adapted_attention(inputs, frozen, adapters.down, adapters.up, coefficients)
    for row in range(ROWS):
        weights = merged_weights(frozen, adapters, row // (ROWS // 2), coefficients[row])
        expected = naive_attention(frozen, weights, inputs[row])
        torch.testing.assert_close(actual[row], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("queries", [None, 1])
def test_rows_of_an_image_get_the_same_result_in_every_grad_mode_and_memory_layout(
    frozen: nn.MultiheadAttention,
    adapters: AttentionAdapters,
    inputs: Tensor,
    mode: Callable[[], AbstractContextManager[None]],
    contiguous: bool,
    queries: int | None,
) -> None:
    coefficients = 2 * torch.randn(ROWS, 4, RANK, generator=Generator().manual_seed(3))
    image = torch.tensor([0, 1, 1, 3])
    expected = adapted_attention(inputs[image], frozen, adapters.down, adapters.up, coefficients)[
        :, :queries
    ]
    if not contiguous:
        inputs = inputs.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    with mode():
        output = adapted_attention(
            inputs, frozen, adapters.down, adapters.up, coefficients, image, queries
        )
        torch.testing.assert_close(output, expected)


def test_down_is_initialised_xavier_uniform_with_gain_ten_and_up_to_zero() -> None:
    width, settings = 64, AdapterSettings()
    adapters = AttentionAdapters(width, settings)
    adapters.initialise(Generator().manual_seed(0))
    assert adapters.down.shape == adapters.up.shape == (4, 2, settings.rank, width)
    assert (adapters.up == 0).all()
    bound = 10 * math.sqrt(6 / (settings.rank + width))
    assert adapters.down.abs().max() <= bound
    reference = nn.init.xavier_uniform_(
        torch.empty(settings.rank, width), gain=10, generator=Generator().manual_seed(1)
    )
    actual = adapters.down.detach().flatten().numpy()
    assert stats.ks_2samp(actual, reference.flatten().numpy()).pvalue > 1e-3
    assert stats.kstest(actual, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3


def test_adapters_and_projections_are_initialised_independently() -> None:
    adapters = AttentionAdapters(WIDTH, SETTINGS)
    adapters.initialise(Generator().manual_seed(0))
    matrices = adapters.down.detach().flatten(0, 1)
    assert len({tuple(matrix.flatten().tolist()) for matrix in matrices}) == len(matrices)


GENERATOR = torch.Generator().manual_seed(0)


def test_a_token_attends_to_others_by_the_distance_of_query_and_key() -> None:
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=GENERATOR).unbind(0)
    expected = torch.zeros_like(value)
    for row in range(2):
        for head in range(2):
            for i in range(5):
                distances = [(query[row, head, i] - k).square().sum() for k in key[row, head]]
                weights = torch.stack([math.e ** (-d / math.sqrt(4)) for d in distances])
                expected[row, head, i] = (weights / weights.sum()) @ value[row, head]
    attention = DistanceAttention(8, 2, batch_first=True)
    torch.testing.assert_close(attend(attention, query, key, value), expected)


def test_bfloat16_products_lose_no_digits_of_the_distances() -> None:
    offset = 300.0  # the squares of the norms are much larger than the distances
    tokens = offset + torch.randn(1, 1, 6, 4, generator=GENERATOR).bfloat16().float()
    values = torch.randn(1, 1, 6, 4, generator=GENERATOR)
    attention = DistanceAttention(4, 1, batch_first=True)
    expected = attend(attention, tokens, tokens, values)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(attend(attention, tokens, tokens, values), expected)


@pytest.mark.parametrize("with_added", [False, True])
def test_gradients_of_bfloat16_on_a_cpu_are_computed_in_float32(with_added: bool) -> None:
    attention = random_backbone().encoder.layers[0].self_attention
    heads = torch.randn(3, 2, 2, 5, 4, generator=GENERATOR).bfloat16()
    added = torch.randn(2, 2, 5, 5, generator=GENERATOR) if with_added else None
    slow, exact = heads.clone().requires_grad_(), heads.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        actual = attend(attention, *slow.unbind(0), added)
    expected = attend(attention, *exact.unbind(0), added)
    assert actual.dtype == torch.bfloat16
    assert torch.equal(actual, expected.bfloat16())
    weights = torch.randn(actual.shape, generator=GENERATOR).bfloat16()
    (actual * weights).sum().backward()
    (expected * weights.float()).sum().backward()
    assert slow.grad is not None
    assert torch.equal(slow.grad, exact.grad.bfloat16())
