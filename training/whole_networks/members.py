"""The members of a run of whole networks: their folders and their recipes."""

from pathlib import Path

import numpy as np

from training.recipe.network import WholeNetworkSettings
from training.recipe.schema import AdapterRecipe

MEMBERS = "members"


def member_folders(recipe: AdapterRecipe, out: Path) -> list[Path]:
    """Returns the folders of a run's checkpoints: `out`, or one for each member of an ensemble."""
    whole = recipe.whole_network
    if whole is None or whole.members == 1:
        return [out]
    digits = len(str(whole.members))
    return [out / MEMBERS / f"{index + 1:0{digits}}" for index in range(whole.members)]


def member_recipe(recipe: AdapterRecipe, index: int) -> AdapterRecipe:
    """Returns the recipe of one member, counted from 0.

    Each has its own seed; the first has the seed of the ensemble, and is the single network of that
    seed if the ensemble is explicit. Snapshots share the epochs, the first ones one more than the
    last if they do not divide; only the first has a warm-up.
    """
    training = recipe.training
    if _settings(recipe).ensemble == "snapshot":
        assert isinstance(training.epochs, int)
        epochs, more = divmod(training.epochs, _settings(recipe).members)
        cycle: dict[str, object] = {"epochs": epochs + (index < more)}
        cycle |= {"warmup_steps": 0} if index else {}
        training = training.model_copy(update=cycle)
    seed = recipe.seed
    if index:
        seed = int(np.random.SeedSequence((recipe.seed, index)).generate_state(1)[0])
    return recipe.model_copy(update={"seed": seed, "training": training})


def starts_from_previous(recipe: AdapterRecipe, index: int) -> bool:
    """True if a member starts from the weights of the member before it."""
    return index > 0 and _settings(recipe).ensemble == "snapshot"


def _settings(recipe: AdapterRecipe) -> WholeNetworkSettings:
    assert recipe.whole_network is not None
    return recipe.whole_network
