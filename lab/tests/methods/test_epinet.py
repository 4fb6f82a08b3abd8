"""EpiNet heads against modules of torch, one for each row."""

import torch
from torch import Generator, Tensor, nn

from eulerlora.nn.method import AdapterHeads
from lab.tests.methods.settings import settings_of
from tests.conftest import random_network

WIDTH, CLASSES = 16, 3
SETTINGS = settings_of("epinet", index_dimension=4, hidden=5, prior_weight=0.7)
ADAPTER = torch.tensor([0, 1, 1, 0])


def heads_of() -> AdapterHeads:
    heads = random_network(method=SETTINGS).heads
    heads.initialise(Generator().manual_seed(0))
    return heads


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def layers(networks: nn.Module, adapter: int) -> nn.Sequential:
    network = nn.Sequential(
        nn.Linear(WIDTH + 4, 5), nn.ReLU(), nn.Linear(5, CLASSES * 4), nn.Unflatten(-1, (-1, 4))
    )
    stored = (
        networks.hidden_weight, networks.hidden_bias, networks.output_weight, networks.output_bias,
    )  # fmt: skip
    with torch.no_grad():
        for parameter, values in zip(network.parameters(), stored, strict=True):
            parameter.copy_(values[adapter])
    return network


@torch.no_grad()
def test_a_rows_logits_are_the_base_head_plus_both_networks_times_its_index() -> None:
    heads, features, index = heads_of(), normal(4, WIDTH), normal(4, 4, seed=2)
    actual = heads(features, ADAPTER, {"index": index})
    for row, adapter in enumerate(ADAPTER.tolist()):
        inputs = torch.cat([features[row], index[row]]).unsqueeze(0)
        learned, prior = (
            layers(part, adapter)(inputs)[0] @ index[row] for part in (heads.learned, heads.prior)
        )
        base = heads.weight[adapter] @ features[row] + heads.bias[adapter]
        torch.testing.assert_close(actual[row], base + learned + 0.7 * prior)


@torch.no_grad()
def test_an_index_of_zeros_is_mode_det() -> None:
    heads, features = heads_of(), normal(4, WIDTH)
    assert torch.equal(
        heads(features, ADAPTER, {"index": torch.zeros(4, 4)}), heads(features, ADAPTER)
    )


def test_the_prior_is_fixed_and_the_networks_send_no_gradient_to_the_features() -> None:
    heads = heads_of()
    gradients = []
    for draws in (None, {"index": normal(4, 4, seed=2)}):
        features = normal(4, WIDTH).requires_grad_()
        heads(features, ADAPTER, draws).sum().backward()
        gradients.append(features.grad)
    torch.testing.assert_close(*gradients)
    assert all(parameter.grad is None for parameter in heads.prior.parameters())
    assert all(parameter.grad.abs().max() > 0 for parameter in heads.learned.parameters())
