"""The network of a run: its backbone, whole networks, and the members of an ensemble."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT, load_checkpoint
from eulerlora.checkpoint.weights import save_backbone
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw
from eulerlora_contract.errors import NonFiniteError
from tests.conftest import DOWNLOADED, TINY_BACKBONE, random_backbone
from training.adaptation.network import (
    count_trained,
    initial_network,
    members,
    read_backbone,
)
from training.recipe.file import find_recipe, read_recipe
from training.recipe.schema import AdapterRecipe, BackboneSource

OUT = Path("out")
CLASSES = 3
WIDTH = TINY_BACKBONE.width
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1])


Whole = Callable[..., AdaptedVisionTransformer]


@pytest.fixture(scope="module")
def network_of(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Makes the whole network of a variant of a recipe, on `random_backbone()`."""
    folder = tmp_path_factory.mktemp("backbone")
    save_backbone(folder / "backbone.safetensors", random_backbone(), {}, torch.float32)
    source = BackboneSource(weights="backbone.safetensors")

    def made(variant: str = "single") -> AdaptedVisionTransformer:
        recipe = read_recipe(find_recipe("ham10000"), AdapterRecipe, variant=variant)
        return initial_network(recipe, read_backbone(source, folder, torch.float32), CLASSES)

    return made


def logits_of(network: AdaptedVisionTransformer, mode: str = "det") -> Tensor:
    draw = Draw.model_validate({"mode": mode})
    rows = Rows.of([1] * len(IMAGES), adapters=1)
    return network(IMAGES, rows, network.method.draw(draw).repeated(len(IMAGES)))


@pytest.mark.parametrize("mode", ["det", "stoch"])
def test_a_whole_network_is_its_backbone_with_a_linear_head(network_of: Whole, mode: str) -> None:
    network = network_of()
    head = nn.Linear(WIDTH, CLASSES)
    head.load_state_dict({n: p[0] for n, p in network.heads.state_dict().items()})
    torch.testing.assert_close(logits_of(network, mode), head(random_backbone()(IMAGES)))


def test_its_gradient_is_that_of_all_weights_of_the_plain_modules(network_of: Whole) -> None:
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


def test_keys_have_the_weights_of_queries_before_and_after_steps_by_distance(
    network_of: Whole,
) -> None:
    network = network_of("l2")
    parameters = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(logits_of(network), LABELS).backward()
        optimiser.step()
    start = random_backbone().state_dict()
    for name, parameter in network.backbone.named_parameters():
        if name.endswith(("in_proj_weight", "in_proj_bias")):
            queries, keys, values = parameter.chunk(3)
            assert torch.equal(queries, keys)
            first_queries, _, first_values = start[name].chunk(3)
            assert not torch.equal(queries, first_queries)
            assert not torch.equal(values, first_values)


def test_the_gradient_by_distance_is_that_of_one_tensor_for_queries_and_keys(
    network_of: Whole,
) -> None:
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


def test_tied_parameters_count_once(network_of: Whole) -> None:
    backbone = sum(parameter.numel() for parameter in random_backbone().parameters())
    head = CLASSES * (WIDTH + 1)
    assert count_trained(network_of()) == backbone + head
    tied = TINY_BACKBONE.layers * WIDTH * (WIDTH + 1)
    assert count_trained(network_of("l2")) == backbone + head - tied


@pytest.mark.parametrize("available", [True, False])
def test_auto_is_the_published_backbone_or_else_the_embedded_one_with_a_message(
    tiny_published, tmp_path: Path, capsys: pytest.CaptureFixture[str], available: bool
) -> None:
    if not available:
        tiny_published.file.unlink()
    frozen = read_backbone(BackboneSource(), tmp_path, torch.float16)
    assert frozen.published == (DOWNLOADED if available else None)
    message = capsys.readouterr().err
    assert len(message.splitlines()) == (not available)
    assert (f"{DOWNLOADED} cannot be downloaded" in message) is not available
    sized = read_backbone(BackboneSource(image_size=28), tmp_path, torch.float16)
    assert (sized.published, sized.backbone.settings.image_size) == (None, 28)


def test_the_embedded_backbone_is_that_of_the_packaged_checkpoint(tmp_path: Path) -> None:
    frozen = read_backbone(BackboneSource(weights="embedded"), tmp_path, torch.float16)
    packaged = load_checkpoint(DEFAULT_CHECKPOINT).network.backbone
    assert frozen.published is None
    for name, tensor in packaged.state_dict().items():
        assert torch.equal(frozen.backbone.state_dict()[name], tensor), name


def test_weights_that_overflow_when_they_are_rounded_are_refused(tmp_path: Path) -> None:
    backbone = random_backbone()
    backbone.class_token.data[0, 0, 1] = 1e6
    save_backbone(tmp_path / "large.safetensors", backbone, {}, torch.float32)
    source = BackboneSource(weights="large.safetensors")
    with pytest.raises(NonFiniteError, match="float16"):
        read_backbone(source, tmp_path, torch.float16)


def test_published_weights_are_read_from_a_file_beside_the_recipe(
    tiny_published, tmp_path: Path
) -> None:
    tiny_published.file.rename(tmp_path / "downloaded.pth")
    source = BackboneSource(weights=tiny_published.name, file="downloaded.pth")
    assert read_backbone(source, tmp_path, torch.float16).published == tiny_published.name


WHOLE = (
    "adapters={adapters = 1, rank = 1, min_rank = 1}",
    "training.samples=1",
    "training.epochs=6",
)


def recipe_of(file: Path, *overrides: str) -> AdapterRecipe:
    return read_recipe(file, AdapterRecipe, (*WHOLE, *overrides))


def test_members_of_an_explicit_ensemble_differ_in_their_seed_alone(recipe_file: Path) -> None:
    recipe = recipe_of(recipe_file, "whole_network={members = 4}")
    ensemble = members(recipe, OUT)
    recipes = [member.recipe for member in ensemble]
    assert recipes[0] == recipe
    assert len({one.seed for one in recipes}) == 4
    assert all(one.model_copy(update={"seed": recipe.seed}) == recipe for one in recipes)
    assert [member.previous for member in ensemble] == [None] * 4


def test_snapshots_share_the_epochs_of_one_run_and_warm_up_once(recipe_file: Path) -> None:
    recipe = recipe_of(recipe_file, 'whole_network={members = 3, ensemble = "snapshot"}')
    ensemble = members(recipe, OUT)
    assert [member.recipe.training.epochs for member in ensemble] == [2, 2, 2]
    uneven = recipe_of(recipe_file, 'whole_network={members = 4, ensemble = "snapshot"}')
    assert [member.recipe.training.epochs for member in members(uneven, OUT)] == [2, 2, 1, 1]
    assert [member.recipe.training.warmup_steps for member in ensemble] == [2, 0, 0]
    folders = [member.folder for member in ensemble]
    assert [member.previous for member in ensemble] == [None, *folders[:2]]


def test_a_single_network_is_in_the_folder_of_its_run(recipe_file: Path) -> None:
    (single,) = members(recipe_of(recipe_file, "whole_network={}"), OUT)
    assert (single.folder, single.previous) == (OUT, None)
    ensemble = members(recipe_of(recipe_file, "whole_network={members = 12}"), OUT)
    assert [member.folder for member in ensemble[::11]] == [OUT / "members/01", OUT / "members/12"]
