"""Adapted self-attention against nn.MultiheadAttention and a naive loop over rows and heads."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn
from torch.func import functional_call

from eulerlora.nn.attention import AttentionAdapters, adapted_attention
from eulerlora.settings import AdapterSettings

ROWS, TOKENS, WIDTH, HEADS = 3, 5, 12, 3
SETTINGS = AdapterSettings(adapters=2, rank=4, min_rank=2)
RANKS = SETTINGS.adapters * SETTINGS.rank


@pytest.fixture
def frozen() -> nn.MultiheadAttention:
    """nn.MultiheadAttention with random weights and biases."""
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
    return torch.randn(ROWS, TOKENS, WIDTH, generator=Generator().manual_seed(2))


def merged_weights(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, coefficients: Tensor
) -> list[Tensor]:
    """Returns W0 + B diag(c) A of Q, K, V and O for the coefficients (4, ranks) of one row."""
    weights = [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight]
    return [
        weight + up.flatten(0, 1).T @ torch.diag(own) @ down.flatten(0, 1)
        for weight, down, up, own in zip(
            weights, adapters.down, adapters.up, coefficients, strict=True
        )
    ]


def torchs_attention(
    frozen: nn.MultiheadAttention, weights: list[Tensor], inputs: Tensor
) -> Tensor:
    """Returns the output of nn.MultiheadAttention with these four weights."""
    state = {"in_proj_weight": torch.cat(weights[:3]), "out_proj.weight": weights[3]}
    output, _ = functional_call(frozen, state, (inputs, inputs, inputs), {"need_weights": False})
    return output


def naive_attention(frozen: nn.MultiheadAttention, weights: list[Tensor], tokens: Tensor) -> Tensor:
    """Returns the softmax attention of one row, computed head by head."""
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
def test_zero_coefficients_leave_the_attention_of_torch(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, inputs: Tensor
) -> None:
    actual = adapted_attention(inputs, frozen, adapters, torch.zeros(ROWS, 4, RANKS))
    expected, _ = frozen(inputs, inputs, inputs, need_weights=False)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_coefficients_of_one_adapter_equal_torchs_attention_on_merged_weights(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, inputs: Tensor
) -> None:
    for adapter in range(SETTINGS.adapters):
        coefficients = torch.zeros(ROWS, 4, RANKS).unflatten(-1, (SETTINGS.adapters, -1))
        coefficients[:, :, adapter] = 1
        weights = [
            weight + up.T @ down
            for weight, down, up in zip(
                [*frozen.in_proj_weight.chunk(3), frozen.out_proj.weight],
                adapters.down[:, adapter],
                adapters.up[:, adapter],
                strict=True,
            )
        ]
        actual = adapted_attention(inputs, frozen, adapters, coefficients.flatten(2))
        expected = torchs_attention(frozen, weights, inputs)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_every_row_uses_its_coefficients(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, inputs: Tensor
) -> None:
    coefficients = 2 * torch.randn(ROWS, 4, RANKS, generator=Generator().manual_seed(3))
    actual = adapted_attention(inputs, frozen, adapters, coefficients)
    for row in range(ROWS):
        weights = merged_weights(frozen, adapters, coefficients[row])
        expected = naive_attention(frozen, weights, inputs[row])
        torch.testing.assert_close(actual[row], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("projection", range(4))
def test_a_coefficient_changes_its_projection_only(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, inputs: Tensor, projection: int
) -> None:
    coefficients = torch.zeros(ROWS, 4, RANKS)
    coefficients[:, projection] = 1.5
    weights = merged_weights(frozen, adapters, torch.zeros(4, RANKS))
    weights[projection] = merged_weights(frozen, adapters, coefficients[0])[projection]
    actual = adapted_attention(inputs, frozen, adapters, coefficients)
    torch.testing.assert_close(
        actual, torchs_attention(frozen, weights, inputs), rtol=1e-4, atol=1e-5
    )


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
    coefficients = 2 * torch.randn(4, 4, RANKS, generator=Generator().manual_seed(3))
    image = torch.tensor([0, 1, 1, 2])
    expected = adapted_attention(inputs[image], frozen, adapters, coefficients)[:, :queries]
    if not contiguous:
        inputs = inputs.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    with mode():
        output = adapted_attention(inputs, frozen, adapters, coefficients, image, queries)
        torch.testing.assert_close(output, expected)


def test_a_row_has_gradients_only_for_adapters_with_non_zero_coefficients(
    frozen: nn.MultiheadAttention, adapters: AttentionAdapters, inputs: Tensor
) -> None:
    coefficients = torch.zeros(ROWS, 4, RANKS)
    coefficients[..., : SETTINGS.rank] = 1
    adapted_attention(inputs, frozen, adapters, coefficients).square().sum().backward()
    for gradient in (adapters.down.grad, adapters.up.grad):
        assert (gradient[:, 0].flatten(1).abs().amax(dim=-1) > 0).all()  # each of the 4
        assert (gradient[:, 1] == 0).all()


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


def test_initialisation_is_a_function_of_the_generator() -> None:
    first, second = AttentionAdapters(WIDTH, SETTINGS), AttentionAdapters(WIDTH, SETTINGS)
    first.initialise(Generator().manual_seed(4))
    torch.manual_seed(99)
    second.initialise(Generator().manual_seed(4))
    assert torch.equal(first.down, second.down)
