"""Training of methods with laws, attention or heads of their own: loss, draws and checkpoint."""

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Generator, Tensor

from eulerlora.checkpoint.files import Checkpoint, load_checkpoint
from eulerlora.methods.registry import DEFAULT_METHOD, build_network
from eulerlora.nn.method import COEFFICIENTS, MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw
from eulerlora_contract.errors import SettingsError
from lab.tests.methods.settings import settings_of
from tests.checkpoint_files import ADAPTERS_FILE
from tests.conftest import TINY_ADAPTERS, predict_rows, random_network
from tests.program import run
from tests.training.conftest import write_recipe
from training.adaptation.network import initial_network, read_backbone
from training.adaptation.network_training import train_adapters
from training.adaptation.objective import AdapterObjective
from training.adaptation.train import train
from training.data.datasets import read_dataset, read_outliers
from training.optimisation.batches import IGNORED
from training.optimisation.run import Run, accelerator_on
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe, AdapterTraining

WEIGHTS = torch.tensor([0.2, 0.5, 0.3])
LABELS = torch.tensor([0, 1, 2, 1])
METHODS = {
    "gaussian-coefficients": settings_of("gaussian-coefficients", kl_weight=3.0),
    "blob": settings_of("blob", kl_weight=3.0),
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
        (settings_of("dropkey"), "dropped_keys", False),
        (settings_of("epinet"), "index", False),
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
    "ivon": {},
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
    """The untrained network of a run with seed 0 and a random head, in stored precision."""
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
    assert checkpoint.config.threshold(checkpoint.config.options("stoch", 1)) is not None
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
    views: str, after_training: Callable[..., MethodSettings]
) -> None:
    network = random_network(method=settings_of("sngp", features=12, weight_precision=0.5))
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
    after_training(network, batches=batches)
    covariance = heads.covariance_root.mT @ heads.covariance_root
    torch.testing.assert_close(covariance, torch.linalg.inv(expected), rtol=1e-3, atol=1e-4)
    assert not heads._forward_hooks


PLAIN = {
    "training.sampling": "false", "training.samples": "1", "training.epochs": "2",
    "evaluation.ood": "[]", "evaluation.calibrated": "[1]", "adapters.min_rank": "4",
}  # fmt: skip
FITTED = {
    "tfb": {"name": "tfb", "anchors": "12", "tolerance": "0.1"},
    "diagonal": {"name": "laplace", "images": "12", "prior_precision": "100"},
    "kronecker": {"name": "laplace", "images": "12", "structure": "kron", "prior_precision": "100"},
    "search": {"name": "laplace", "images": "5", "layers": "last"},
    "swag": {"name": "swag", "steps": "4", "snapshots": "2", "learning_rate": "0.01"},
}


@pytest.fixture(scope="module")
def run_with(
    image_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Mapping[str, str]], Checkpoint]:
    recipe_file = write_recipe(tmp_path_factory.mktemp("fitted"))

    def checkpoint(changes: Mapping[str, str]) -> Checkpoint:
        recipe = read_recipe(recipe_file, AdapterRecipe, [f"{k}={v}" for k, v in changes.items()])
        out = recipe_file.with_name(f"run-{len(list(recipe_file.parent.iterdir()))}")
        train(recipe, recipe_file.parent, image_folder, out, torch.device("cpu"))
        return load_checkpoint(out)

    return checkpoint


@pytest.fixture(scope="module")
def plain(run_with: Callable[[Mapping[str, str]], Checkpoint]) -> Checkpoint:
    """LoRA-Ensemble, whose training the fitted methods have."""
    return run_with(PLAIN)


@pytest.mark.parametrize("case", FITTED)
def test_a_distribution_is_fitted_to_the_adapters_of_the_same_training(
    run_with: Callable[[Mapping[str, str]], Checkpoint], plain: Checkpoint, case: str
) -> None:
    settings = FITTED[case]
    checkpoint = run_with(PLAIN | {f"method.{key}": value for key, value in settings.items()})
    stored = checkpoint.config.method.model_dump(mode="json")
    assert {key: str(stored[key]).removesuffix(".0") for key in settings} == settings
    if settings["name"] == "laplace":
        assert checkpoint.config.method.prior_precision is not None
    if case == "tfb":
        assert checkpoint.config.method.deviation is not None
    assert checkpoint.config.threshold(checkpoint.config.options("stoch", 1)) is not None
    images = torch.rand(2, 3, 32, 32, generator=Generator().manual_seed(1))
    if case != "swag":  # whose mean is another one
        for actual, other in zip(
            *(predict_rows(c.network, images, [Draw()] * 2) for c in (checkpoint, plain)),
            strict=True,
        ):
            torch.testing.assert_close(actual.exp(), other.exp(), rtol=0, atol=1e-2)
    (stoch,) = predict_rows(checkpoint.network, images[:1], [Draw(mode="stoch", samples=3)])
    assert (stoch.unflatten(0, (2, 3)).std(dim=1) > 0).any()


@pytest.mark.parametrize(
    "setting",
    [
        "training.class_balance=0.5",
        "training.augmented_views=own",
        "training.adapter_dropout=0.2",
        "training.loss=mean",
        "outliers={path='other', images=5, weight=2.0}",
    ],
)
def test_further_losses_are_those_of_the_training(
    recipe_file: Path, image_folder: Path, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares the first step of a training with the first loss from the same weights."""
    one_step = ("epochs=1", "batch_size=100", "warmup_steps=0", "precision=float32")
    overrides = (*(f"training.{value}" for value in one_step), setting)
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    images = read_dataset(recipe.data, image_folder)
    outliers = recipe.outliers and read_outliers(recipe.outliers, image_folder)
    frozen = read_backbone(recipe.backbone, recipe_file.parent, torch.float16)
    network = initial_network(recipe, frozen, len(images.classes))
    started = Run(
        accelerator_on(torch.device("cpu")), recipe.seed, recipe, recipe_file.parent / "state"
    )
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    runs = []

    def after_training(_method: object, _network: object, finished: object) -> None:
        runs.append(finished)

    monkeypatch.setattr(type(network.method), "after_training", after_training)
    result = train_adapters(network, recipe, images, outliers, started)
    network.load_state_dict(start)
    loss = next(runs[0].losses(1)).item()
    assert result["loss_by_epoch"] == pytest.approx([loss], rel=1e-5)


def test_ivon_needs_weight_decay(recipe_file: Path, image_folder: Path, tmp_path: Path) -> None:
    changes = ("method.name=ivon", "training.weight_decay=0")
    recipe = read_recipe(recipe_file, AdapterRecipe, changes)
    with pytest.raises(SettingsError):
        train(recipe, recipe_file.parent, image_folder, tmp_path / "run", torch.device("cpu"))


def test_a_resumed_training_by_ivon_ends_with_the_same_weights(
    recipe_file: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("--set", "method.name=ivon", "--set", "training.weight_decay=0.1")
    arguments = ("train", recipe_file, "--data", image_folder, "--device", "cpu", *settings)
    loss = AdapterObjective.loss

    def trained(out: Path, *more: str, stop_at: int = 0) -> tuple[int, int]:
        """Returns the exit status and the number of steps; SIGINT comes during the given one."""
        steps = 0

        def counted(*given: Any) -> Tensor:
            nonlocal steps
            steps += 1
            if steps == stop_at:
                os.kill(os.getpid(), signal.SIGINT)
            return loss(*given)

        monkeypatch.setattr(AdapterObjective, "loss", counted)
        return run(*arguments, "--out", out, *more).status, steps

    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert trained(whole) == (0, 7)
    assert trained(resumed, stop_at=3) == (130, 3)
    assert trained(resumed, "--resume") == (0, 4)
    first, second = (load_file(folder / ADAPTERS_FILE) for folder in (whole, resumed))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
