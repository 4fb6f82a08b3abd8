"""Training of adapters and of the distribution that a recipe fits to them."""

from functools import partial
from pathlib import Path

import torch

from training.adaptation.train import train
from training.bayesian.bayesianise import fit_posterior
from training.fit.run import Tracking
from training.recipe.schema import AdapterRecipe


def train_posterior(
    recipe: AdapterRecipe,
    recipe_folder: Path,
    data: Path,
    out: Path,
    device: torch.device,
    resume: bool = False,
    skip_bad: bool = False,
    tracking: Tracking | None = None,
) -> None:
    """Runs a recipe with `posterior`: the checkpoint has the fitted distribution.

    Its weights are those that `bayesianise` gives for the checkpoint of the recipe without
    `posterior`. A run that is interrupted during the fit repeats the fit. Arguments and errors as
    in `train`.
    """
    assert recipe.posterior is not None
    finish = partial(fit_posterior, recipe.posterior)
    train(recipe, recipe_folder, data, out, device, resume, skip_bad, tracking, finish)
