"""Adapter dropout: without it, the block of prediction; with it, the layers of PEFT."""

import pytest
import torch
from torch import Generator, nn

from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import RowDraws, Rows
from tests.conftest import random_network
from training.adaptation.objective import DropoutBlock

ROWS = Rows.of([2, 1], 2)
IMAGES = torch.rand(2, 3, 32, 32, generator=Generator().manual_seed(0))
COEFFICIENTS = torch.rand(6, 2, 4, 8, generator=Generator().manual_seed(1))
DRAWS = RowDraws.of_coefficients(COEFFICIENTS)
ZEROS = RowDraws.of_coefficients(0 * COEFFICIENTS)


@pytest.fixture
def network() -> AdaptedVisionTransformer:
    return random_network()


def block(probability: float) -> DropoutBlock:
    return DropoutBlock(probability, Generator().manual_seed(2))


def test_no_dropout_is_the_block_of_prediction(network: AdaptedVisionTransformer) -> None:
    plain = network(IMAGES, ROWS, DRAWS)
    torch.testing.assert_close(network(IMAGES, ROWS, DRAWS, block=block(0.0)), plain)
    assert not torch.allclose(network(IMAGES, ROWS, DRAWS, block=block(0.5)), plain)


def test_dropout_leaves_the_frozen_network_alone(network: AdaptedVisionTransformer) -> None:
    frozen = network(IMAGES, ROWS, ZEROS)
    torch.testing.assert_close(network(IMAGES, ROWS, ZEROS, block=block(0.5)), frozen)


def test_kept_elements_are_scaled_to_the_same_mean() -> None:
    dropped = block(0.25).dropped(torch.full((200, 50), 3.0))
    assert set(dropped.unique().tolist()) == {0.0, 4.0}
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)


def test_a_projection_is_that_of_peft(network: AdaptedVisionTransformer) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(16, 16))
    config = peft.LoraConfig(r=8, lora_alpha=8, lora_dropout=0.5, target_modules=["0"])
    layer = peft.get_peft_model(base, config).base_model.model[0]
    adapters, frozen = network.blocks[0], network.backbone.encoder.layers[0].self_attention
    with torch.no_grad():  # the output projection
        layer.base_layer.weight.copy_(frozen.out_proj.weight)
        layer.base_layer.bias.copy_(frozen.out_proj.bias)
        layer.lora_A.default.weight.copy_(adapters.down[3].flatten(0, 1))
        layer.lora_B.default.weight.copy_(adapters.up[3].flatten(0, 1).T)
    inputs, dropping = torch.rand(6, 5, 16), block(0.5)
    ours = dropping.projection(
        inputs, frozen.out_proj.weight, frozen.out_proj.bias, adapters, 3, torch.ones(6, 4, 8)
    )
    kept = block(0.5).dropped(torch.ones_like(inputs))
    layer.lora_dropout["default"] = Multiplied(kept)
    torch.testing.assert_close(ours, layer(inputs))


class Multiplied(nn.Module):
    """Multiplies by given factors, in place of PEFT's own draw."""

    def __init__(self, factors: torch.Tensor) -> None:
        super().__init__()
        self.factors = factors

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.factors
