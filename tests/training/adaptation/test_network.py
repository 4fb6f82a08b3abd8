"""Whole networks against plain modules, and the ties of queries and keys."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.settings import Draw, Preprocessing
from tests.conftest import TINY_BACKBONE, random_backbone
from training.adaptation.network import PROJECTED, count_trained, whole_network
from training.recipe.schema import WholeNetworkSettings

CLASSES = 3
WIDTH = TINY_BACKBONE.width
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1])


def network_of(attention: str = "dot") -> AdaptedVisionTransformer:
    settings = WholeNetworkSettings.model_validate({"attention": attention})
    network = whole_network(random_backbone(), settings, CLASSES, Preprocessing(size=32))
    network.heads.initialise(torch.Generator().manual_seed(1))
    return network


def logits_of(network: AdaptedVisionTransformer, mode: str = "det") -> Tensor:
    draw = Draw.model_validate({"mode": mode})
    rows = Rows.of([1] * len(IMAGES), adapters=1)
    return network(IMAGES, rows, network.method.draw(draw).repeated(len(IMAGES)))


@pytest.mark.parametrize("mode", ["det", "stoch"])
def test_a_whole_network_is_its_backbone_with_a_linear_head(mode: str) -> None:
    network = network_of()
    head = nn.Linear(WIDTH, CLASSES)
    head.load_state_dict({n: p[0] for n, p in network.heads.state_dict().items()})
    torch.testing.assert_close(logits_of(network, mode), head(random_backbone()(IMAGES)))


def test_its_gradient_is_that_of_all_weights_of_the_plain_modules() -> None:
    network, plain = network_of(), random_backbone().requires_grad_(True)
    head = nn.Linear(WIDTH, CLASSES)
    head.load_state_dict({n: p[0] for n, p in network.heads.state_dict().items()})
    nn.functional.cross_entropy(logits_of(network), LABELS).backward()
    nn.functional.cross_entropy(head(plain(IMAGES)), LABELS).backward()
    for (name, actual), expected in zip(
        network.backbone.named_parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(actual.grad, expected.grad, msg=name)
    torch.testing.assert_close(network.heads.weight.grad[0], head.weight.grad)
    assert all(parameter.grad is None for parameter in network.blocks.parameters())


def test_training_leaves_the_given_backbone_unchanged() -> None:
    backbone = random_backbone()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    network = whole_network(backbone, WholeNetworkSettings(), CLASSES, Preprocessing(size=32))
    with torch.no_grad():
        for parameter in network.backbone.parameters():
            parameter.add_(1)
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_keys_have_the_weights_of_queries_before_and_after_steps_by_distance() -> None:
    network = network_of("l2")
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(logits_of(network), LABELS).backward()
        optimiser.step()
    start = random_backbone().state_dict()
    for name, parameter in network.backbone.named_parameters():
        if name.endswith(PROJECTED):
            queries, keys, values = parameter.chunk(3)
            assert torch.equal(queries, keys)
            first_queries, _, first_values = start[name].chunk(3)
            assert not torch.equal(queries, first_queries)
            assert not torch.equal(values, first_values)


def test_the_gradient_by_distance_is_that_of_one_tensor_for_queries_and_keys() -> None:
    network = network_of("l2")
    name = "backbone.encoder.layers.encoder_layer_0.self_attention.in_proj_weight"
    whole = dict(network.named_parameters())[name]
    nn.functional.cross_entropy(logits_of(network), LABELS).backward()
    queries, _, values = whole.detach().chunk(3)
    shared, rest = queries.clone().requires_grad_(), values.clone().requires_grad_()
    rows = Rows.of([1] * len(IMAGES), adapters=1)
    ones = RowDraws.of_coefficients(torch.ones(len(IMAGES), network.depth, 4, 1))
    packed = {name: torch.cat([shared, shared, rest])}
    logits = functional_call(network, packed, (IMAGES, rows, ones))
    nn.functional.cross_entropy(logits, LABELS).backward()
    expected = torch.cat([shared.grad, shared.grad, rest.grad])
    torch.testing.assert_close(whole.grad, expected)


def test_tied_parameters_count_once() -> None:
    backbone = sum(parameter.numel() for parameter in random_backbone().parameters())
    head = CLASSES * (WIDTH + 1)
    assert count_trained(network_of()) == backbone + head
    tied = TINY_BACKBONE.layers * WIDTH * (WIDTH + 1)
    assert count_trained(network_of("l2")) == backbone + head - tied
