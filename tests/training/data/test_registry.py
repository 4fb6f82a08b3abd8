"""A data set is one class and one line of the registry."""

from pathlib import Path

import pytest
import torch

from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import validated
from tests.training.evaluation.test_ood_sets import config
from tests.training.reporting.test_model_card import config_with_facts
from tests.training.synthetic_report import REPORT
from training.data import registry
from training.data.dataset import DataSet, DataSettings
from training.data.datasets import read_dataset, read_ood_set, read_unlabelled
from training.data.images import ImageParts, LabelledImage, OodSet
from training.data.registry import OodSettings, UnlabelledData
from training.evaluation.ood_sets import resemblance
from training.recipe.schema import AdapterRecipe
from training.reporting.model_card import model_card

RECIPE = {"name": "own", "training": {"epochs": 1}}


class Tiles(DataSet):
    """Twelve gray tiles of two classes."""

    kind = "tiles"
    title = "Tiles"
    licence = "Tiles, CC0."
    hub_licence = "cc0-1.0"
    family = "tilings"
    intended = "Tests of tilers."

    def read(self, path: Path, settings: DataSettings, on_bad: object) -> ImageParts:
        images = [
            LabelledImage(f"{path.name}-{i}", torch.full((3, 8, 8), i, dtype=torch.uint8), i % 2)
            for i in range(12)
        ]
        classes = tuple(ClassName(name=name, description=name) for name in ("even", "odd"))
        return ImageParts(
            self.named(settings.split), classes, {"train": images[:8], "test": images[8:]}
        )


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the registry."""
    monkeypatch.setitem(registry.DATA_SETS, Tiles.kind, Tiles())


@pytest.mark.usefixtures("tiles")
def test_a_class_and_a_line_of_the_registry_make_a_data_set(tmp_path: Path) -> None:
    recipe = validated(AdapterRecipe, RECIPE | {"data": {"kind": "tiles", "split": "paper"}})
    images = read_dataset(recipe.data, tmp_path)
    assert (images.name, len(images.parts["train"])) == ("Tiles, paper split", 8)
    outside = read_ood_set(OodSettings(kind="tiles"), tmp_path)
    assert (outside.name, len(outside.images)) == ("Tiles", 4)
    unlabelled = read_unlabelled(UnlabelledData(kind="tiles", split="paper"), tmp_path)
    assert {image.label for image in unlabelled.images} == {-1}

    card = model_card(config_with_facts("tiles"), REPORT)
    assert all(text in card for text in ("Tests of tilers.", "Tiles, CC0.", "cc0-1.0"))
    trained = config(recipe={"data": {"kind": "tiles", "path": "."}})
    assert resemblance(OodSet("tiles-2", []), trained) is not None
    assert resemblance(OodSet("other", []), trained) is None


@pytest.mark.parametrize(
    "data", [{"kind": "tiles"}, {"kind": "cifar10", "classes": {"a": "a"}}, {"split": "paper"}]
)
def test_unknown_kinds_and_keys_that_a_kind_ignores_are_refused(data: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="kind"):
        validated(AdapterRecipe, RECIPE | {"data": data})
