"""Training of methods with laws, attention or heads of their own: loss, draws and checkpoint."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from eulerlora.checkpoint.files import Checkpoint, load_checkpoint
from eulerlora.methods.eulerlora import DropKeySettings
from eulerlora.methods.heads import EpiNetSettings, SNGPSettings
from eulerlora.methods.registry import DEFAULT_METHOD, build_network
from eulerlora.methods.variational import BLoBSettings, GaussianCoefficientsSettings
from eulerlora.nn.method import COEFFICIENTS, MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw
from tests.conftest import TINY_ADAPTERS, random_network
from training.adaptation.objective import AdapterObjective
from training.adaptation.train import train
from training.optimisation.batches import IGNORED
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe, AdapterTraining

WEIGHTS = torch.tensor([0.2, 0.5, 0.3])
LABELS = torch.tensor([0, 1, 2, 1])
METHODS = {
    "gaussian-coefficients": GaussianCoefficientsSettings(kl_weight=3.0),
    "blob": BLoBSettings(kl_weight=3.0),
}


@pytest.fixture
def images() -> Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def objective_of(name: str) -> AdapterObjective:
    network = random_network(method=METHODS[name])
    return AdapterObjective(network, AdapterTraining(samples=2), WEIGHTS, image_count=50)


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_adds_the_divergence_per_image(name: str, images: Tensor) -> None:
    objective = objective_of(name)
    network, weight = objective.network, objective.weight(LABELS)
    actual = objective.loss(network, images, LABELS, objective.draw(1, 2, 0)) / weight
    draws = objective.draw(1, 2, 0).row_draws(4)
    logits = network(images, Rows.of([2] * 4, 2), draws).unflatten(0, (4, 4))
    own = logits.log_softmax(dim=-1)[torch.arange(4), :, LABELS].mean(dim=1)
    likelihood = -(own * WEIGHTS[LABELS]).sum() / weight
    torch.testing.assert_close(actual, likelihood + network.divergence() / (2 * 50))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("adapters", [2, 4])
def test_equal_adapters_have_the_loss_of_one_of_them(
    name: str, adapters: int, images: Tensor
) -> None:
    """In mode det, so that they answer alike."""

    def loss(count: int) -> Tensor:
        settings = TINY_ADAPTERS.model_copy(update={"adapters": count})
        network = random_network(settings, method=METHODS[name])
        with torch.no_grad():
            for part, parameter in network.adapter_parameters():
                own = dict(one.adapter_parameters())[part]
                shape = parameter.shape
                parameter.copy_(own.expand(shape) if own.ndim == len(shape) else own)
        objective = AdapterObjective(
            network, AdapterTraining(samples=1, sampling=False), WEIGHTS, image_count=50
        )
        return objective.loss(network, images, LABELS, objective.draw(1, 2, 0))

    one = random_network(TINY_ADAPTERS.model_copy(update={"adapters": 1}), method=METHODS[name])
    assert one.divergence() > 5  # not negligible
    torch.testing.assert_close(loss(adapters), loss(1))


@pytest.mark.parametrize(
    ("method", "name", "shared"),
    [
        (DEFAULT_METHOD, COEFFICIENTS, True),
        (METHODS["gaussian-coefficients"], "coefficient_noise", True),
        (METHODS["blob"], "down", False),
        (DropKeySettings(), "dropped_keys", False),
        (EpiNetSettings(), "index", False),
    ],
)
def test_draws_are_those_of_seed_step_and_process_and_are_shared_by_images_or_not(
    method: MethodSettings, name: str, shared: bool
) -> None:
    def drawn(seed: int = 1, step: int = 2, process: int = 0) -> Tensor:
        settings = AdapterTraining(samples=2)
        objective = AdapterObjective(random_network(method=method), settings, torch.ones(3))
        draws = objective.draw(seed, step, process).row_draws(2)
        return (draws.blocks | draws.head)[name]

    first, second = drawn().chunk(2)
    assert torch.equal(first, second) == shared
    assert torch.equal(drawn(), torch.cat([first, second]))
    assert torch.equal(drawn(), drawn(process=1)) == shared
    assert not torch.equal(drawn(), drawn(seed=2))
    assert not torch.equal(drawn(), drawn(step=3))


MEMBERS = {"adapters.rank": "1", "adapters.min_rank": "1", "training.head": "random"}
OVERRIDES: Mapping[str, Mapping[str, str]] = {
    "gaussian-coefficients": {},
    "blob": {},
    "ivon": {"training.optimiser": "ivon"},
    "dropkey": {},
    "batch-ensemble": {"method.blocks": "1", **MEMBERS},
    "last-layer-ensemble": MEMBERS,
    "sngp": {"method.features": "16", "method.norm_bound": "0.01", "training.head": "random"},
    "epinet": {},
}


def trained(name: str, recipe_file: Path, image_folder: Path, out: Path) -> Checkpoint:
    changes = {
        "method.name": name, "training.epochs": "1", "evaluation.ood": "[]",
        "evaluation.calibrated": "[1]", "adapters.min_rank": "4", **OVERRIDES[name],
    }  # fmt: skip
    recipe = read_recipe(recipe_file, AdapterRecipe, [f"{k}={v}" for k, v in changes.items()])
    train(recipe, recipe_file.parent, image_folder, out, torch.device("cpu"))
    return load_checkpoint(out)


def initial(checkpoint: Checkpoint) -> AdaptedVisionTransformer:
    """Returns the untrained network of a run with seed 0 and a random head, in stored precision."""
    network, config = checkpoint.network, checkpoint.config
    made = build_network(
        network.backbone, network.settings, len(config.classes), method=config.method
    )
    seed = config.provenance["seed"]
    made.initialise(Generator().manual_seed(seed))
    return made


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_run_trains_what_the_method_learns_and_keeps_what_is_fixed(
    name: str, recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    checkpoint = trained(name, recipe_file, image_folder, tmp_path / "run")
    network = checkpoint.network
    assert checkpoint.config.method.name == name
    assert checkpoint.config.threshold("stoch", 1) is not None
    for parameter_name, before in initial(checkpoint).adapter_parameters():
        after = network.get_parameter(parameter_name)
        if parameter_name == "heads.covariance_root":
            assert (after.diagonal(dim1=-2, dim2=-1) > 0).all()
        elif parameter_name.endswith("_root"):  # a learned standard deviation
            assert (after > 0).all(), parameter_name
            assert not torch.equal(after, before), parameter_name
        elif before.requires_grad:
            assert not torch.equal(after, before), parameter_name
        else:
            torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)
    if name == "sngp":
        for block in network.blocks:
            norms = torch.linalg.matrix_norm(block.up.mT @ block.down, ord=2)
            assert norms.max() <= 0.01 * 1.01
            assert norms.max() >= 0.01 * 0.99


@torch.no_grad()
@pytest.mark.parametrize("views", ["shared", "own"])
def test_the_covariance_is_fitted_to_all_images_of_a_class_with_the_mean_logits(
    views: str,
) -> None:
    network = random_network(method=SNGPSettings(features=12, weight_precision=0.5))
    shape = (5, 3, 32, 32) if views == "shared" else (5, 2, 3, 32, 32)
    pixels = torch.rand(shape, generator=Generator().manual_seed(1))
    labels = torch.tensor([0, 2, -1, 1, IGNORED])
    ignored = (
        torch.rand(shape, generator=Generator().manual_seed(2)),
        torch.full((5,), IGNORED),
    )
    batches = [(pixels[:3], labels[:3]), (pixels[3:], labels[3:]), ignored]
    heads = network.heads
    expected = 0.5 * torch.eye(12).repeat(2, 1, 1)
    heads.covariance_root.zero_()
    for image in (0, 1, 3):
        for adapter in range(2):
            view = pixels[image] if views == "shared" else pixels[image, adapter]
            backbone_features: list[Tensor] = []
            hook = heads.register_forward_pre_hook(
                lambda _, inputs, seen=backbone_features: seen.append(inputs[0])
            )
            rows, draws = Rows.of([1], 2), network.draw_rows([Draw()])
            logits = network(view.unsqueeze(0), rows, draws)[adapter]
            hook.remove()
            phi = heads.random_features(
                backbone_features[0][adapter, None], torch.tensor([adapter])
            )
            p = logits.softmax(dim=-1).max()
            expected[adapter] += p * (1 - p) * phi.T @ phi
    heads.covariance_root.normal_(generator=Generator().manual_seed(3))  # of an earlier fit
    network.method.after_training(network, batches, lambda total: total)
    covariance = heads.covariance_root.mT @ heads.covariance_root
    torch.testing.assert_close(covariance, torch.linalg.inv(expected), rtol=1e-3, atol=1e-4)
    assert not heads._forward_hooks
