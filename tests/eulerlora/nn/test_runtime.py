"""Precision, compilation and passes of the runtime; batches of images with different draws."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Generator, Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit

from eulerlora.nn.method import COEFFICIENTS, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import TorchRuntime, max_rows_per_pass
from eulerlora.settings import Draw, RuntimeSettings
from tests.conftest import TINY_BACKBONE, predict_rows, random_backbone, random_network

COMPILED_ROWS = (2, 4, 8, 16, 32, 64, 96, 128)  # of two adapters
CPU = torch.device("cpu")
DRAWS = (Draw(), Draw(mode="stoch", samples=3, seed=1), Draw(mode="stoch", samples=1, seed=2))


def inputs_of(network: AdaptedVisionTransformer) -> tuple[Tensor, Rows, RowDraws]:
    generator = torch.Generator().manual_seed(0)
    size = network.backbone.settings.image_size
    images = torch.rand(len(DRAWS), 3, size, size, generator=generator)
    rows = Rows.of([draw.samples for draw in DRAWS], network.settings.adapters)
    return images, rows, network.draw_rows(DRAWS)


def test_bfloat16_rounds_the_products_of_blocks_but_not_patches_norms_positions_and_heads() -> None:
    network = random_network()
    TorchRuntime(network, CPU, RuntimeSettings(precision="bfloat16"))
    unrounded = {name for name, p in network.named_parameters() if p.dtype == torch.float32}
    excluded = ("conv_proj", "ln", "pos_embedding", "class_token", "heads")
    assert unrounded == {
        n for n, _ in network.named_parameters() if any(part in n for part in excluded)
    }


def test_a_large_bias_of_the_keys_costs_no_digits_in_bfloat16() -> None:
    network, biased = random_network(), random_network()
    for block in biased.backbone.encoder.blocks():
        block.self_attention.in_proj_bias.data.chunk(3)[1].add_(100)
    arguments = inputs_of(network)
    with torch.inference_mode():
        torch.testing.assert_close(  # no softmax changes
            biased(*arguments), network(*arguments), rtol=0, atol=1e-3
        )
        expected, actual = (
            TorchRuntime(one, CPU, RuntimeSettings(precision="bfloat16"))(*arguments)
            for one in (network, biased)
        )
    assert torch.equal(actual, expected)


def test_attention_by_distance_keeps_the_bias_of_the_keys_in_bfloat16() -> None:
    l2 = TINY_BACKBONE.model_copy(update={"attention": "l2"})
    network = random_network(backbone=random_backbone(l2))
    TorchRuntime(network, CPU, RuntimeSettings(precision="bfloat16"))
    (block, *_) = network.backbone.encoder.blocks()
    assert block.self_attention.in_proj_bias.chunk(3)[1].count_nonzero() > 0


def test_bfloat16_leaves_the_embeddings_of_patches_in_float32() -> None:
    network = random_network()
    contrast = slice(2 * network.backbone.settings.width, None)  # a function of the patches alone
    with torch.inference_mode():
        exact = network.outputs(*inputs_of(network)).features[:, contrast]
        rounded = TorchRuntime(network, CPU, RuntimeSettings(precision="bfloat16"))
        actual = rounded.outputs(*inputs_of(network)).features[:, contrast]
    assert torch.equal(actual, exact)


@pytest.mark.parametrize(
    ("precision", "compiler"),
    [
        ("float32", "eager"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("bfloat16", "eager"), ("float32", "inductor"), ("bfloat16", "inductor"))
        ),
    ],
)
def test_a_compiled_network_has_the_logits_of_the_plain_one(precision: str, compiler: str) -> None:
    network = random_network()
    settings = RuntimeSettings.model_validate({"precision": precision, "compiler": compiler})
    compiled = TorchRuntime(copy.deepcopy(network), CPU, settings)
    with torch.inference_mode():
        expected, actual = network(*inputs_of(network)), compiled(*inputs_of(network))
    assert actual.shape == expected.shape
    if precision == "float32":
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    else:
        torch.testing.assert_close(actual.softmax(-1), expected.softmax(-1), rtol=0, atol=0.03)


def test_many_rows_on_a_cpu_run_in_several_passes_with_the_same_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = random_network()
    shape = network.backbone.settings
    monkeypatch.setattr("eulerlora.nn.runtime._CPU_TOKENS", 0)
    monkeypatch.setattr("eulerlora.nn.runtime._CPU_VALUES", 8 * shape.tokens * shape.mlp_width)
    passes: list[int] = []
    outputs = network.outputs

    def counted(images: Tensor, rows: Rows, draws: RowDraws):
        passes.append(len(rows))
        return outputs(images, rows, draws)

    monkeypatch.setattr(network, "outputs", counted)
    runtime = TorchRuntime(network, CPU)
    with torch.inference_mode():
        actual = runtime(*inputs_of(network))
    assert passes == [2, 6, 2]  # two passes of 5 rows would cut the second image
    with torch.inference_mode():
        expected = outputs(*inputs_of(network)).logits
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_a_pass_on_a_gpu_leaves_most_of_its_memory_free(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network()
    properties = SimpleNamespace(total_memory=8 * 4 * (17 * 24) * 5)  # tokens and MLP width
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    assert max_rows_per_pass(network, torch.device("cuda")) == 5
    assert max_rows_per_pass(network, CPU) == 1_500_000 // (17 * 24)


def test_a_pass_on_a_cpu_has_a_minimum_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eulerlora.nn.runtime._CPU_VALUES", 1)
    assert max_rows_per_pass(random_network(), CPU) == 1_200 // 17


def test_the_first_pass_compiles_all_row_counts_and_returns_the_logits_of_the_given_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = random_network()
    shapes: list[tuple[int, ...]] = []

    def compiled(images: Tensor, rows: Rows, draws: RowDraws):
        shapes.append((len(images), len(rows), len(draws.blocks[COEFFICIENTS])))
        return network.outputs(images, rows, draws)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    runtime = TorchRuntime(network, CPU, RuntimeSettings(compiler="eager"))
    with torch.inference_mode():
        torch.testing.assert_close(runtime(*inputs_of(network)), network(*inputs_of(network)))
        runtime(*inputs_of(network))
    assert shapes == [*((count,) * 3 for count in reversed(COMPILED_ROWS)), (16,) * 3, (16,) * 3]


def test_views_need_no_further_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network()
    strides: set[tuple[int, ...]] = set()

    def compiled(images: Tensor, rows: Rows, draws: RowDraws):
        strides.add(images.stride())
        return network.outputs(images, rows, draws)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    runtime = TorchRuntime(network, CPU, RuntimeSettings(compiler="eager"))
    images, *_ = inputs_of(network)
    draw = Draw(mode="stoch", samples=4, views=8)
    viewed = Rows.of([4], 2).with_views(images[:1], torch.arange(8))
    with torch.inference_mode():
        runtime(viewed.images, viewed.rows, network.draw_rows([draw]))
    assert len(viewed.images) in COMPILED_ROWS  # nothing is padded
    assert strides == {images.stride()}


@pytest.mark.parametrize("rows", [40, 64, 100])
def test_a_compiled_network_runs_more_rows_of_an_image_than_the_largest_graph_has(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eulerlora.nn.runtime._ROW_COUNTS", (1, 2, 4, 8, 16, 32))
    network = random_network()
    runtime = TorchRuntime(network, CPU, RuntimeSettings(compiler="eager"))
    images, *_ = inputs_of(network)
    draws = network.draw_rows([Draw(mode="stoch", samples=rows // 2, seed=1)])
    arguments = images[:1], Rows.of([rows // 2], 2), draws
    with torch.inference_mode():
        actual, expected = runtime.outputs(*arguments), network.outputs(*arguments)
    for values, exact in zip(actual, expected, strict=True):
        torch.testing.assert_close(values, exact, rtol=0, atol=1e-4)


def test_a_network_that_cannot_be_compiled_once_more_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eulerlora.nn.runtime._MAX_GRAPHS", 2)
    torch._dynamo.reset()
    network = random_network()
    runtime = TorchRuntime(network, CPU, RuntimeSettings(compiler="eager"))
    with torch.inference_mode(), pytest.raises(FailOnRecompileLimitHit):
        runtime(*inputs_of(network))


BATCH_DRAWS = (
    Draw(),
    Draw(mode="stoch", samples=3, seed=1),
    Draw(mode="stoch", samples=1, seed=1),
    Draw(mode="stoch", samples=4, seed=2),
    Draw(mode="stoch", samples=3, seed=2, sampler="balanced"),
    Draw(),
)


@pytest.fixture
def images() -> Tensor:
    return torch.rand(len(BATCH_DRAWS), 3, 32, 32, generator=Generator().manual_seed(0))


def test_a_non_finite_image_does_not_change_other_images(
    network: AdaptedVisionTransformer, images: Tensor
) -> None:
    broken = images.clone()
    broken[1] = torch.nan
    actual, expected = (
        predict_rows(network, broken, BATCH_DRAWS),
        predict_rows(network, images, BATCH_DRAWS),
    )
    assert actual[1].isnan().all()
    for index in (0, 2, 3, 4):
        torch.testing.assert_close(actual[index], expected[index])
