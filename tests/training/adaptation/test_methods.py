"""Training of methods with learned laws: the loss, the draws of images, and the checkpoint."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.methods.variational import BLoBSettings, GaussianCoefficientsSettings
from eulerlora.nn.rows import Rows
from tests.conftest import TINY_ADAPTERS, random_network
from training.adaptation.objective import AdapterObjective, trajectory_losses
from training.adaptation.train import train
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

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
    return AdapterObjective(network, 2, trajectory_losses, WEIGHTS, image_count=50)


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_adds_the_divergence_per_image(name: str, images: Tensor) -> None:
    objective = objective_of(name)
    network, weight = objective.network, objective.weight(LABELS)
    actual = objective.loss(network, images, LABELS, objective.draw(1, 2, 0)) / weight
    draws = objective.draw(1, 2, 0).images(4)
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
            network, 1, trajectory_losses, WEIGHTS, sampling=False, image_count=50
        )
        return objective.loss(network, images, LABELS, objective.draw(1, 2, 0))

    one = random_network(TINY_ADAPTERS.model_copy(update={"adapters": 1}), method=METHODS[name])
    assert one.divergence() > 5  # not negligible
    torch.testing.assert_close(loss(adapters), loss(1))


def test_images_share_coefficient_noise_but_have_weight_noise_of_their_own() -> None:
    shared = objective_of("gaussian-coefficients").draw(1, 2, 0).images(2).blocks
    first, second = shared["coefficient_noise"].chunk(2)
    assert torch.equal(first, second)
    own = objective_of("blob").draw(1, 2, 0).images(2).blocks["down"]
    assert not torch.equal(*own.chunk(2))
    assert torch.equal(objective_of("blob").draw(1, 2, 0).images(2).blocks["down"], own)
    assert not torch.equal(objective_of("blob").draw(1, 2, 1).images(2).blocks["down"], own)


@pytest.mark.parametrize("name", [*METHODS, "ivon"])
def test_a_run_learns_the_law_and_stores_the_method(
    recipe_file: Path, image_folder: Path, tmp_path: Path, name: str
) -> None:
    overrides = ["training.optimiser=ivon"] if name == "ivon" else []
    overrides += [
        f"method.name={name}", "training.epochs=1", "evaluation.ood=[]",
        "evaluation.calibrated=[1]", "adapters.min_rank=4",
    ]  # fmt: skip
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    train(recipe, recipe_file.parent, image_folder, tmp_path / "run", torch.device("cpu"))
    checkpoint = load_checkpoint(tmp_path / "run")
    assert checkpoint.config.method.name == name
    block = checkpoint.network.blocks[0]
    if name == "blob":
        assert (block.down_root > 0).all()
    elif name == "ivon":
        for root in (block.down_root, block.up_root, checkpoint.network.heads.weight_root):
            assert (root > 0).all()
            assert root.std() > 0
    else:
        assert (block.mean != 1).any()
    assert checkpoint.config.threshold("stoch", 1) is not None
