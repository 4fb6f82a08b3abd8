"""SNGP: bounded norms, and Gaussian-process heads against closed forms in float64."""

import math

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.exchange.exporting import exported_adapters
from eulerlora.methods.registry import build_network
from eulerlora.nn.method import AdapterHeads, MethodSettings
from eulerlora.sampling.masks import AdapterSettings
from eulerlora_contract.errors import SettingsError
from lab.tests.methods.settings import settings_of
from tests.conftest import config_of, random_backbone, random_network

WIDTH, CLASSES, ADAPTERS = 16, 3, 2
SETTINGS = settings_of("sngp", features=20, length_scale=0.7, weight_precision=0.3)


def heads_of(settings: MethodSettings = SETTINGS) -> AdapterHeads:
    heads = random_network(method=settings).heads
    heads.initialise(Generator().manual_seed(0))
    return heads


def features_of(count: int, seed: int = 1) -> Tensor:
    return 3 * torch.randn(count, WIDTH, generator=Generator().manual_seed(seed))


def naive_phi(heads: AdapterHeads, features: Tensor, adapter: int) -> Tensor:
    """The random features (D,) of one row, in float64."""
    h = features.double()
    h = (h - h.mean()) / (h.var(correction=0) + 1e-5).sqrt()
    count = heads.settings.features
    v, phase = heads.frequencies[adapter].double(), heads.phases[adapter].double()
    return torch.stack(
        [math.sqrt(2 / count) * torch.cos(v[j] @ h + phase[j]) for j in range(count)]
    )


@torch.no_grad()
def test_mean_variance_and_draws_are_those_of_the_posterior_in_closed_form() -> None:
    heads, training, tested = heads_of(), features_of(30), features_of(4, seed=2)
    adapter = torch.arange(30) % ADAPTERS
    heads.set_covariance(heads.curvature(training, adapter, heads(training, adapter)))
    noise = torch.randn(4, CLASSES, generator=Generator().manual_seed(3))
    sampled = torch.tensor([[1.0], [0.0], [1.0], [1.0]])
    rows = torch.tensor([0, 1, 1, 0])
    det = heads(tested, rows)
    stoch = heads(tested, rows, {"logit_noise": noise, "sampled": sampled})
    for row, index in enumerate(rows.tolist()):
        precision = 0.3 * torch.eye(20, dtype=torch.float64)
        weight, bias = heads.weight[index].double(), heads.bias[index].double()
        for image in features_of(30)[adapter == index]:
            phi = naive_phi(heads, image, index)
            p = (math.sqrt(20) * weight @ phi + bias).softmax(dim=0).max()
            precision += p * (1 - p) * phi.outer(phi)
        phi = naive_phi(heads, tested[row], index)
        mean = math.sqrt(20) * weight @ phi + bias
        variance = phi @ torch.linalg.inv(precision) @ phi
        expected = mean / (1 + math.pi / 8 * variance).sqrt()
        torch.testing.assert_close(det[row].double(), expected, rtol=1e-4, atol=1e-5)
        if sampled[row]:
            expected = mean + variance.sqrt() * noise[row]
        torch.testing.assert_close(stoch[row].double(), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_products_of_random_features_approximate_the_gaussian_kernel() -> None:
    count = 8192
    heads = heads_of(settings_of("sngp", features=count, length_scale=0.7))
    features = features_of(6)
    phi = heads.random_features(features, torch.zeros(6, dtype=torch.long))
    inputs = F.layer_norm(features, (WIDTH,))
    squared = torch.cdist(inputs, inputs).square() / WIDTH
    kernel = torch.exp(-squared / (2 * 0.7**2))
    torch.testing.assert_close(phi @ phi.T, kernel, rtol=0, atol=5 / math.sqrt(count))


def test_noise_has_no_effect_and_finite_gradients_before_the_covariance_is_set() -> None:
    heads, features = heads_of(), features_of(4).requires_grad_()
    adapter = torch.tensor([0, 0, 1, 1])
    logits = heads(
        features, adapter, {"logit_noise": torch.ones(4, CLASSES), "sampled": torch.ones(4, 1)}
    )
    assert torch.equal(logits, heads(features, adapter))
    logits.square().sum().backward()
    for gradient in (features.grad, heads.weight.grad):
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0
    trained = [name for name, parameter in heads.named_parameters() if parameter.requires_grad]
    assert trained == ["weight", "bias"]


@torch.no_grad()
def test_a_step_scales_only_adapters_whose_product_has_a_greater_norm() -> None:
    settings = settings_of("sngp", features=8, norm_bound=2.0)
    adapters = random_network(method=settings).blocks[0]
    adapters.initialise(Generator().manual_seed(0))
    adapters.constrain()
    assert not adapters.up.any()
    adapters.up.normal_(std=0.05, generator=Generator().manual_seed(1))
    adapters.up[0] *= 1e-3
    before = adapters.up.mT @ adapters.down
    adapters.constrain()
    after = adapters.up.mT @ adapters.down
    norms = torch.linalg.matrix_norm(before, ord=2)
    assert (norms[1:] > 2).all()
    expected = before * (2 / norms).clamp(max=1)[..., None, None]
    torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(after[0], before[0])


def test_a_network_constrains_all_of_its_blocks() -> None:
    network = random_network(method=settings_of("sngp", features=8, norm_bound=0.5))
    network.constrain()
    for block in network.blocks:
        norms = torch.linalg.matrix_norm(block.up.mT @ block.down, ord=2)
        torch.testing.assert_close(norms, torch.full_like(norms, 0.5))


def test_other_libraries_have_no_gaussian_process_heads() -> None:
    network = build_network(
        random_backbone(), AdapterSettings(), 3, method=settings_of("sngp", features=8)
    )
    with pytest.raises(SettingsError, match="sngp"):
        exported_adapters(Checkpoint(network, config_of(network), "sha256:0"))
