"""What holds for every method: draws of single requests, passes, checkpoints."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora.checkpoint.files import load_checkpoint, save_checkpoint
from eulerlora.methods.registry import DEFAULT_METHOD, NamedMethod, method_type
from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer, predict_images
from eulerlora.nn.runtime import TorchRuntime
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import Draw, RuntimeSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import SAMPLERS, Sampler
from eulerlora_contract.settings import Settings, validated
from lab.tests.methods.settings import METHODS, settings_of
from tests.conftest import TINY_ADAPTERS, config_of, predict_rows, random_network

CPU = torch.device("cpu")
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
SAMPLED = {n: m for n, m in METHODS.items() if method_type(m).is_sampled(TINY_ADAPTERS)}
each_sampled_method = pytest.mark.parametrize("method", SAMPLED.values(), ids=SAMPLED.keys())
each_ensemble = pytest.mark.parametrize("name", [n for n in METHODS if n not in SAMPLED])
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS)
DRAWS = (
    Draw(mode="stoch", samples=3, seed=5),
    Draw(),
    Draw(mode="stoch", samples=2, seed=7, sampler="balanced"),
)


def network_of(method: MethodSettings) -> AdaptedVisionTransformer:
    return random_network(method=method)


@each_method
def test_an_answer_does_not_depend_on_the_other_images_of_a_batch(
    method: MethodSettings, images: Tensor
) -> None:
    network = network_of(method)
    together = predict_rows(network, images, DRAWS)
    for index, draw in enumerate(DRAWS):
        (alone,) = predict_rows(network, images[index, None], [draw])
        torch.testing.assert_close(together[index], alone, rtol=0, atol=1e-5)


@each_sampled_method
@each_sampler
def test_the_seed_determines_the_answer_and_samples_differ(
    method: MethodSettings, sampler: Sampler, images: Tensor
) -> None:
    network = network_of(method)
    draws = [Draw(mode="stoch", samples=3, seed=seed, sampler=sampler) for seed in (1, 1, 2)]
    first, again, other = predict_rows(network, images[:1].expand(3, -1, -1, -1), draws)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-3)
    by_adapter = first.unflatten(0, (2, 3))
    assert (by_adapter.std(dim=1) > 0).all()


@each_ensemble
@each_sampler
def test_every_sample_of_an_ensemble_is_that_of_mode_det(
    name: str, sampler: Sampler, images: Tensor
) -> None:
    network, image = network_of(METHODS[name]), images[:1]
    (stoch,) = predict_rows(network, image, [Draw(mode="stoch", samples=3, sampler=sampler)])
    (det,) = predict_rows(network, image, [Draw()])
    torch.testing.assert_close(stoch, det.repeat_interleave(3, dim=0), rtol=0, atol=1e-5)
    assert not torch.allclose(*det, atol=1e-3)


@each_method
def test_a_draw_does_not_use_torchs_global_generator(method: MethodSettings) -> None:
    network = network_of(method)
    before = torch.get_rng_state()
    network.draw_rows(DRAWS)
    assert torch.equal(torch.get_rng_state(), before)


@each_method
def test_the_first_balanced_samples_do_not_depend_on_their_number(method: MethodSettings) -> None:
    network = network_of(method)
    few, many, rest = (
        network.draw_rows([Draw(mode="stoch", seed=3, sampler="balanced", **counts)])
        for counts in ({"samples": 3}, {"samples": 6}, {"samples": 6, "first": 3})
    )
    for part in ("blocks", "head"):
        for name, values in getattr(many, part).items():
            by_adapter = values.unflatten(0, (2, 6))
            assert torch.equal(getattr(few, part)[name], by_adapter[:, :3].flatten(0, 1))
            assert torch.equal(getattr(rest, part)[name], by_adapter[:, 3:].flatten(0, 1))


@each_method
@pytest.mark.parametrize("max_rows", [5, 1])
def test_rows_of_several_passes_have_the_answers_of_one(
    method: MethodSettings, images: Tensor, max_rows: int
) -> None:
    draws = (DRAWS[0].model_copy(update={"views": 8}), *DRAWS[1:])
    runtime = TorchRuntime(network_of(method), CPU)
    outputs = []
    for runtime.max_rows_per_pass in (1000, max_rows):
        outputs.append(predict_images(runtime, images, draws))
    for actual, expected in zip(*outputs, strict=True):
        for field in ("log_probabilities", "log_partition", "features"):
            values = getattr(actual, field), getattr(expected, field)
            torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5)


ROWS = {"sngp": 6, "epinet": 6, "batch-ensemble": 6, "last-layer-ensemble": 3}
"""Distinct features of DRAWS, where not all of 2 adapters with 3 + 1 + 2 samples are: those of 3
images and 2 adapters, or of the images."""


@each_method
def test_rows_with_equal_features_share_all_blocks(method: MethodSettings, images: Tensor) -> None:
    network = network_of(method)
    shapes: list[int] = []
    first = network.backbone.encoder.layers[0]
    first.mlp.register_forward_pre_hook(lambda _, inputs: shapes.append(len(inputs[0])))
    predict_images(network, images, DRAWS)
    assert shapes == [ROWS.get(method.name, 12)]


@each_method
def test_a_checkpoint_stores_the_method_and_its_tensors(
    method: MethodSettings, images: Tensor, tmp_path: Path
) -> None:
    network = network_of(method)
    save_checkpoint(tmp_path / "checkpoint", network, config_of(network), "")
    loaded = load_checkpoint(tmp_path / "checkpoint")
    assert loaded.config.method == method
    expected = predict_rows(network, images, DRAWS)
    for actual, other in zip(predict_rows(loaded.network, images, DRAWS), expected, strict=True):
        assert torch.equal(actual, other)


@each_method
def test_bfloat16_keeps_the_probabilities(method: MethodSettings, images: Tensor) -> None:
    draws = [draw.model_copy(update={"seed": 1}) for draw in DRAWS]
    rounded = TorchRuntime(network_of(method), CPU, RuntimeSettings(precision="bfloat16"))
    actual, expected = (predict_rows(part, images, draws) for part in (rounded, network_of(method)))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.exp(), other.exp(), rtol=0, atol=0.06)


class Config(Settings):
    method: NamedMethod = DEFAULT_METHOD


def test_ensembles_draw_nothing_and_all_other_methods_draw() -> None:
    lora = AdapterSettings(rank=20, min_rank=20)
    others = [method for method in METHODS.values() if method.name != "eulerlora"]
    assert {method.name for method in others if not method_type(method).is_sampled(lora)} == {
        "batch-ensemble", "last-layer-ensemble"
    }  # fmt: skip


def test_a_method_states_its_law_with_its_settings() -> None:
    method = settings_of("tfb", deviation=0.5, tolerance=0.1, anchors=8)
    text = method_type(method).law_text(method, AdapterSettings(rank=20, min_rank=20))
    assert text == "tfb, deviation 0.5, tolerance 0.1, anchors 8"


def test_a_wrong_name_is_answered_with_the_names_of_all_distributions() -> None:
    with pytest.raises(SettingsError, match="'eulerlora', 'batch-e"):
        validated(Config, {"method": {"name": "dropout"}})


def test_the_method_is_a_part_of_the_sampling_digest() -> None:
    digests = {
        config_of(network_of(method)).sampling_digest
        for method in (METHODS["eulerlora"], METHODS["dropkey"])
    }
    assert len(digests) == 2
