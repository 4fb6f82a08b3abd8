"""Device and provenance of a run."""

import json
from pathlib import Path

import pytest
import torch

from training.fit import run
from training.fit.run import accelerator_on, run_provenance
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe


@pytest.mark.parametrize(
    ("name", "current"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", []), ("cpu:0", [])]
)
def test_a_cuda_device_becomes_the_current_device_that_accelerate_uses(
    monkeypatch: pytest.MonkeyPatch, name: str, current: list[str]
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(str(device)))
    monkeypatch.setattr(run, "Accelerator", lambda cpu: calls.append(f"cpu={cpu}"))
    accelerator_on(torch.device(name))
    assert calls == [*current, f"cpu={name.startswith('cpu')}"]


def test_provenance_is_json_and_contains_the_whole_recipe(recipe_file: Path) -> None:
    recipe = read_recipe(recipe_file, AdapterRecipe, ["training.epochs=9"])
    provenance = json.loads(json.dumps(run_provenance(recipe, torch.device("cpu"))))
    assert AdapterRecipe.model_validate(provenance["recipe"]) == recipe
    assert provenance["seed"] == recipe.seed
    assert provenance["versions"]["torch"] == torch.__version__
    assert "CPU thread" in provenance["hardware"]
    assert len(provenance["date"]) == len("2026-01-01")
