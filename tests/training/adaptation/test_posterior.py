"""`eulerlora bayesianise`: new checkpoints of a finished one, and wrong usage."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from eulerlora.checkpoint.files import (
    load_checkpoint,
    predict_known_answer,
    read_known_answer,
    read_training_images,
)
from eulerlora.methods.posteriors import LaplaceSettings, SWAGSettings, TFBSettings
from eulerlora.model import EulerLoRA
from eulerlora_contract.errors import CheckpointError, DataError
from tests.conftest import config_of
from tests.program import succeed
from tests.training.conftest import set_options, write_recipe
from training.adaptation.network import initial_network, read_backbone
from training.adaptation.posterior import RecipeFitSource
from training.adaptation.train import train, train_adapters
from training.commands.bayesianise import bayesianise_command
from training.data.datasets import read_dataset, read_outliers
from training.optimisation.run import Run, accelerator_on
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

OVERRIDES = ("training.epochs=2", "evaluation.ood=[]", "evaluation.calibrated=[1]")


@pytest.fixture(scope="module")
def source(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained checkpoint of the method eulerlora."""
    path = write_recipe(tmp_path_factory.mktemp("bayesianise"))
    out = path.with_name("run")
    recipe = read_recipe(path, AdapterRecipe, OVERRIDES)
    train(recipe, path.parent, image_folder, out, torch.device("cpu"))
    return out


def bayesianise(checkpoint: Path, data: Path, out: Path, name: str, *settings: str) -> Result:
    """Runs the command. name: "name=METHOD". settings: "KEY=VALUE"."""
    arguments = [checkpoint, "--data", data, "--out", out, "--device", "cpu"]
    arguments += ["--method", name.removeprefix("name=")]
    arguments += set_options(settings)
    return CliRunner().invoke(bayesianise_command, [*map(str, arguments)])


CASES = {
    "tfb": ("name=tfb", "images=12", "tolerance=0.1"),
    "laplace": ("name=laplace", "images=12", "layers=all", "prior_precision=100"),
    "kron": ("name=laplace", "images=12", "structure=kron", "prior_precision=100"),
    "swag": ("name=swag", "steps=4", "snapshots=2", "learning_rate=0.01"),
}
EXPECTED = {
    "laplace": LaplaceSettings(layers="all", prior_precision=100.0, images=12),
    "kron": LaplaceSettings(layers="all", structure="kron", prior_precision=100.0, images=12),
    "swag": SWAGSettings(learning_rate=0.01, steps=4, snapshots=2),
}


@pytest.mark.parametrize("case", CASES)
def test_each_method_writes_a_calibrated_checkpoint_that_samples_weights(
    source: Path, image_folder: Path, tmp_path: Path, photo: Image.Image, case: str
) -> None:
    out, method = tmp_path / "out", "laplace" if case == "kron" else case
    result = bayesianise(source, image_folder, out, *CASES[case])
    assert result.exit_code == 0, result.output
    plain, model = EulerLoRA.load(source, "cpu"), EulerLoRA.load(out, "cpu")
    config = model.config
    if method == "tfb":
        assert isinstance(config.method, TFBSettings)
        assert (config.method.tolerance, config.method.anchors) == (0.1, 12)
    else:
        assert config.method == EXPECTED[case]
    assert config.name == f"tiny-run-{method}"
    assert config.provenance["fitted_to"] == plain.revision
    adapters = model.network.settings
    assert plain.network.settings.min_rank < adapters.min_rank == adapters.rank  # no masks
    assert config.threshold("det", 1) is not None
    assert config.threshold("stoch", 1) is not None
    assert config.features is not None
    assert read_training_images(out).keys() == read_training_images(source).keys()
    known = read_known_answer(out, config)
    assert known.fault(predict_known_answer(model.network, known.pixels), "float32") is None
    if method != "swag":  # whose mean is another one
        det, expected = (m.predict([photo]).probabilities for m in (model, plain))
        torch.testing.assert_close(det, expected, rtol=0, atol=1e-2)
    first, again = (model.predict([photo], "stoch", 3, seed=1) for _ in range(2))
    assert torch.equal(first.trajectories, again.trajectories)
    assert (first.trajectories.unflatten(1, (2, 3)).std(dim=2) > 0).any()


@pytest.mark.parametrize("case", ["tfb", "kron", "swag"])
def test_a_recipe_with_a_posterior_gives_the_weights_of_a_fitted_checkpoint(
    source: Path, image_folder: Path, tmp_path: Path, case: str
) -> None:
    overrides = (*OVERRIDES, *(f"posterior.{setting}" for setting in CASES[case]))
    out = tmp_path / "run"
    succeed("train", source.parent / "tiny.toml", "--data", image_folder, "--out", out,
               "--device", "cpu", *set_options(overrides))  # fmt: skip
    result = bayesianise(source, image_folder, tmp_path / "fit", *CASES[case])
    assert result.exit_code == 0, result.output
    trained, fitted = load_checkpoint(out), load_checkpoint(tmp_path / "fit")
    assert trained.config.method == fitted.config.method
    assert trained.config.name == "tiny-run"
    expected = dict(fitted.network.adapter_parameters())
    for name, weights in trained.network.adapter_parameters():
        torch.testing.assert_close(weights, expected[name], rtol=0, atol=0)
    (det, stoch) = json.loads((out / "report" / "report.json").read_text())["modes"]
    assert (det["mode"], stoch["mode"]) == ("det", "stoch")
    assert det["metrics"]["nll"] != stoch["metrics"]["nll"]


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
def test_a_fit_continues_with_the_loss_and_the_batches_of_the_training(
    recipe_file: Path, image_folder: Path, setting: str
) -> None:
    """Compares the first step of a training with that of a fit from the same weights."""
    cpu = torch.device("cpu")
    one_step = ("epochs=1", "batch_size=100", "warmup_steps=0", "precision=float32")
    overrides = (*(f"training.{value}" for value in one_step), setting)
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    images = read_dataset(recipe.data, image_folder)
    outliers = recipe.outliers and read_outliers(recipe.outliers, image_folder)
    frozen = read_backbone(recipe.backbone, recipe_file.parent, torch.float16)
    network = initial_network(recipe, frozen, len(images.classes))
    provenance = {"recipe": recipe.model_dump(mode="json")}
    config = config_of(network, classes=images.classes, provenance=provenance)
    source = RecipeFitSource(network, config, images, cpu, lambda: outliers)
    loss = next(source.losses(1)).item()
    run = Run(accelerator_on(cpu), recipe.seed, recipe, recipe_file.parent / "state")
    result = train_adapters(network, recipe, images, outliers, run)
    assert result["final_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.effect_noise((48, 36), 60).convert("RGB")


@pytest.mark.parametrize(
    ("settings", "parameter"),
    [
        (("name=swag", "tolerance=0.1"), "tolerance"),
        (("name=tfb", "prior_precision=2"), "prior_precision"),
        (("name=blob",), "--method"),
        (("name=tfb", "tolerance=1"), "tolerance"),
        (("name=tfb", "tolerance"), "--set"),
    ],
)
def test_wrong_settings_are_refused_before_any_work(
    tmp_path: Path, settings: tuple[str, ...], parameter: str
) -> None:
    result = bayesianise(tmp_path / "none", tmp_path, tmp_path / "out", *settings)
    assert result.exit_code == 2
    assert parameter in result.output
    assert not (tmp_path / "out").exists()


def test_a_prior_precision_is_not_chosen_on_the_test_part(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    overrides = (*OVERRIDES, "data.split=paper", "posterior={name='laplace'}")
    recipe = read_recipe(recipe_file, AdapterRecipe, overrides)
    with pytest.raises(DataError, match=r"posterior\.prior_precision"):
        train(recipe, recipe_file.parent, image_folder, tmp_path / "run", torch.device("cpu"))
    assert not (tmp_path / "run").exists()


def test_a_fitted_checkpoint_is_no_source(source: Path, image_folder: Path, tmp_path: Path) -> None:
    fitted = tmp_path / "fitted"
    assert bayesianise(source, image_folder, fitted, "tfb", "images=4").exit_code == 0
    result = bayesianise(fitted, image_folder, tmp_path / "out", "laplace")
    assert isinstance(result.exception, CheckpointError)
    assert result.exception.path == fitted
    assert not (tmp_path / "out").exists()
