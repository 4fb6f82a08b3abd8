"""Facts that let someone repeat a run."""

import json
from pathlib import Path

import torch

from training.fit.run import run_provenance
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe


def test_provenance_is_json_and_holds_the_whole_recipe(recipe_file: Path) -> None:
    recipe = read_recipe(recipe_file, AdapterRecipe, ["training.epochs=9"])
    facts = json.loads(json.dumps(run_provenance(recipe, torch.device("cpu"))))
    assert AdapterRecipe.model_validate(facts["recipe"]) == recipe
    assert facts["seed"] == recipe.seed
    assert facts["versions"]["torch"] == torch.__version__
    assert "CPU thread" in facts["hardware"]
    assert len(facts["date"]) == len("2026-01-01")
