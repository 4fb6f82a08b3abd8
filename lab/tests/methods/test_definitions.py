"""Each method against its definition, with a plain LoRA network for every row as reference."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.distributions import Normal, kl_divergence

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.exchange.exporting import exported_adapters
from eulerlora.methods.registry import build_network, method_type
from eulerlora.nn.method import COEFFICIENTS, MethodSettings, NetworkShape
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Draw
from eulerlora_contract.errors import SettingsError
from lab.tests.methods.settings import METHODS, settings_of
from tests.conftest import config_of, predict_rows, random_backbone, random_network

STOCH = Draw(mode="stoch", samples=3, seed=4)
RANK = 4
STANDARD_ERRORS = 5

Network = Callable[..., AdaptedVisionTransformer]


@pytest.fixture
def image() -> Tensor:
    return torch.rand(1, 3, 32, 32, generator=Generator().manual_seed(1))


def det_logits(network: AdaptedVisionTransformer, image: Tensor) -> Tensor:
    return predict_rows(network, image, [Draw()])[0][0]


def deviation(module: nn.Module, name: str, adapter: int, axis: int, noise: Tensor) -> Tensor:
    """std * noise, in the bases of the law where it has some."""

    def part(ending: str) -> Tensor | None:
        stored = getattr(module, f"{name}_{ending}", None)
        return None if stored is None else stored.select(axis, adapter)

    root, left, right = part("root"), part("left"), part("right")
    assert root is not None
    if left is None:
        return root**2 * noise
    return left @ (root**2 * noise) if right is None else left @ (root**2 * noise) @ right.mT


def changed_weights(network: AdaptedVisionTransformer, row: int) -> dict[str, Tensor]:
    """mean + std * noise for the noise of a row, by parameter name."""
    draws, adapter = network.draw_rows([STOCH]), row // STOCH.samples
    changes = {}
    for index, block in enumerate(network.blocks):
        for name in set(draws.blocks) - {COEFFICIENTS}:
            drawn = deviation(block, name, adapter, 1, draws.blocks[name][row, index])
            changes[f"blocks.{index}.{name}"] = getattr(block, name)[:, adapter] + drawn
    for name, noise in draws.head.items():
        drawn = deviation(network.heads, name, adapter, 0, noise[row])
        changes[f"heads.{name}"] = getattr(network.heads, name)[adapter] + drawn
    return changes


@pytest.mark.parametrize(
    "name",
    [
        "blob",
        "ivon",
        "tfb",
        "laplace, last layer",
        "laplace, adapters",
        "swag",
        "laplace, kronecker",
    ],
)
def test_rows_with_normal_weights_equal_plain_lora_with_the_drawn_weights(
    name: str, image: Tensor, plain_lora: Network
) -> None:
    network = random_network(method=METHODS[name])
    (actual,) = predict_rows(network, image, [STOCH])
    for row in range(6):
        plain = plain_lora(network, row // STOCH.samples, changed_weights(network, row))
        torch.testing.assert_close(actual[row], det_logits(plain, image), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "name", ["eulerlora", "rank dropout", "fixed rank", "gaussian coefficients"]
)
@pytest.mark.parametrize("draw", [STOCH, Draw()])
def test_rows_with_coefficients_equal_plain_lora_with_scaled_rows_of_a(
    name: str, draw: Draw, image: Tensor, plain_lora: Network
) -> None:
    """B (c * (A x)) = B ((c * A) x)."""
    network = random_network(method=METHODS[name])
    draws = network.draw_rows([draw])
    (actual,) = predict_rows(network, image, [draw])
    for row, log_probabilities in enumerate(actual):
        adapter, changes = row // draw.samples, {}
        for index, block in enumerate(network.blocks):
            c = draws.blocks[COEFFICIENTS][row, index]
            if name == "gaussian coefficients":
                noise = draws.blocks.get("coefficient_noise", torch.zeros(8, 2, 4, RANK))
                scale = block.log_scale[:, adapter].exp()
                c = block.mean[:, adapter] + scale * noise[row, index]
            changes[f"blocks.{index}.down"] = c.unsqueeze(-1) * block.down[:, adapter]
        expected = det_logits(plain_lora(network, adapter, changes), image)
        torch.testing.assert_close(log_probabilities, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["eulerlora", "gaussian coefficients", "swag"])
def test_exported_members_are_the_answers_of_mode_det(
    name: str, image: Tensor, plain_lora: Network
) -> None:
    network = random_network(method=METHODS[name])
    (det,) = predict_rows(network, image, [Draw()])
    exported = exported_adapters(Checkpoint(network, config_of(network), "sha256:0"))
    for adapter, member in enumerate(exported):
        changes = {f"blocks.{index}.down": down for index, down in enumerate(member.down)}
        expected = det_logits(plain_lora(network, adapter, changes), image)
        torch.testing.assert_close(det[adapter], expected, rtol=0, atol=1e-5)


def masks_of(settings: MethodSettings, sampler: str) -> Tensor:
    """(samples, 4, rank) of one adapter and many blocks and samples."""
    adapters = AdapterSettings(adapters=1, rank=10, min_rank=10)
    shape = NetworkShape(adapters, BackboneSettings(layers=256), classes=2)
    method = method_type(settings)(settings, shape)
    draw = Draw.model_validate({"mode": "stoch", "samples": 4, "seed": 2, "sampler": sampler})
    return method.draw(draw).blocks[COEFFICIENTS].double()


@pytest.mark.parametrize("sampler", ["independent", "balanced"])
def test_bernoulli_directions_are_kept_independently_with_mean_one(sampler: str) -> None:
    masks = masks_of(settings_of("rank-dropout", kept=0.6), sampler)
    assert masks.unique().tolist() == pytest.approx([0.0, 1 / 0.6])
    for sample in masks:
        flat = sample.flatten(0, 1)
        error = flat.std(dim=0) / math.sqrt(len(flat))
        assert ((flat.mean(dim=0) - 1).abs() < STANDARD_ERRORS * error).all()
        correlation = torch.corrcoef(flat.T).fill_diagonal_(0).abs()
        assert correlation.max() < STANDARD_ERRORS / math.sqrt(len(flat))


def test_balanced_bernoulli_directions_are_pairs_of_complementary_draws() -> None:
    """Of u and 1 - u, one or both are at most 0.6, and both with probability 0.2."""
    first, second = (masks_of(settings_of("rank-dropout", kept=0.6), "balanced")[:2] > 0).unbind(0)
    assert (first | second).all()
    both = (first & second).double()
    assert abs(both.mean() - 0.2) < STANDARD_ERRORS * both.std() / math.sqrt(both.numel())


@pytest.mark.parametrize("sampler", ["independent", "balanced"])
def test_a_fixed_rank_keeps_a_uniform_subset_of_one_size(sampler: str) -> None:
    masks = masks_of(settings_of("rank-dropout", law="fixed", kept=0.6), sampler)
    assert masks.unique().tolist() == pytest.approx([0.0, 10 / 6])
    assert ((masks > 0).sum(dim=-1) == 6).all()
    for sample in masks:
        flat = (sample > 0).flatten(0, 1).double()
        pairs = flat.T @ flat / len(flat)  # P(both kept) is 6/10 * 5/9
        error = (pairs * (1 - pairs) / len(flat)).sqrt()
        expected = torch.full((10, 10), 1 / 3, dtype=torch.float64).fill_diagonal_(0.6)
        assert ((pairs - expected).abs() < STANDARD_ERRORS * error).all()


@pytest.mark.parametrize("kept", [1.0, 0.99])
def test_dropout_that_keeps_every_direction_is_mode_det(kept: float, image: Tensor) -> None:
    settings = settings_of("rank-dropout", law="fixed", kept=kept)
    network = random_network(method=settings)
    (stoch,), (det,) = (predict_rows(network, image, [draw]) for draw in (STOCH, Draw()))
    torch.testing.assert_close(stoch, det.repeat_interleave(3, dim=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["gaussian coefficients", "blob", "tfb", "swag"])
def test_balanced_samples_are_pairs_with_opposite_noise(name: str) -> None:
    network = random_network(method=METHODS[name])
    draws = network.draw_rows([Draw(mode="stoch", samples=4, seed=1, sampler="balanced")])
    noise = {**draws.blocks, **draws.head}
    del noise[COEFFICIENTS]
    for values in noise.values():
        by_adapter = values.unflatten(0, (2, 4))
        assert torch.equal(by_adapter[:, 0::2], -by_adapter[:, 1::2])
        assert not torch.equal(by_adapter[:, 0], by_adapter[:, 2])


def initialised(method: MethodSettings) -> AdaptedVisionTransformer:
    settings = AdapterSettings(adapters=2, rank=8, min_rank=8)
    network = build_network(random_backbone(), settings, 3, method=method)
    network.initialise(Generator().manual_seed(0))
    return network


def naive_divergence(mean: Tensor, scale: Tensor, prior: float) -> Tensor:
    return kl_divergence(Normal(mean, scale), Normal(torch.zeros_like(mean), prior)).sum()


def test_the_divergence_of_coefficients_is_torchs() -> None:
    network = initialised(settings_of("gaussian-coefficients", prior_scale=0.7, kl_weight=0.5))
    expected = sum(
        naive_divergence(block.mean, block.log_scale.exp(), 0.7) for block in network.blocks
    )
    torch.testing.assert_close(network.divergence(), 0.5 * expected)


def test_the_divergence_of_blob_is_torchs() -> None:
    network = initialised(settings_of("blob", prior_scale=3.0, kl_weight=0.5))
    unit = 10 * math.sqrt(6 / (8 + 16)) / math.sqrt(3)  # of a uniform law
    expected = sum(
        naive_divergence(block.down, block.down_root**2, 3 * unit) for block in network.blocks
    )
    torch.testing.assert_close(network.divergence(), 0.5 * expected)
    assert initialised(METHODS["eulerlora"]).divergence() is None


def test_initial_laws_have_the_stated_scales_and_directions() -> None:
    coefficients = initialised(settings_of("gaussian-coefficients", initial_scale=0.2)).blocks[0]
    scale = coefficients.log_scale.exp()
    assert 0.2 / math.sqrt(2) <= scale.min() < scale.max() <= 0.2
    assert (coefficients.mean == 1).all()
    gram = coefficients.down @ coefficients.down.mT
    diagonal = torch.diag_embed(gram.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(gram, diagonal, rtol=0, atol=1e-4)
    plain = initialised(METHODS["eulerlora"]).blocks[0].down  # of the same generator
    values = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    torch.testing.assert_close(values, torch.linalg.svdvals(plain))
    blob = initialised(settings_of("blob", initial_scale=0.1)).blocks[0]
    relative = blob.down_root**2 / blob.unit
    assert 0.05 - 1e-6 <= relative.min() < relative.max() <= 0.1 + 1e-6


def test_normal_coefficients_need_at_most_as_many_directions_as_features() -> None:
    settings = AdapterSettings(rank=20, min_rank=20)
    with pytest.raises(SettingsError, match=r"adapters\.rank"):
        build_network(random_backbone(), settings, 3, method=settings_of("gaussian-coefficients"))


@pytest.mark.parametrize("name", ["gaussian coefficients", "blob"])
def test_learned_means_and_scales_get_gradients(name: str, image: Tensor) -> None:
    network = random_network(method=METHODS[name])
    rows = Rows.of([STOCH.samples], 2)
    network(image, rows, network.draw_rows([STOCH])).square().sum().backward()
    for block in network.blocks:
        assert isinstance(block, nn.Module)
        for parameter in block.parameters():
            assert parameter.grad is not None
            assert parameter.grad.abs().max() > 0
