"""The mapping of names to served models."""

import pytest
import torch

from eulerlora.checkpoint.files import Checkpoint
from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from eulerlora_client.contract.problems import UnknownModel
from service.inference.engine import ServedModel, ServedModels


@pytest.fixture
def serve(make_network, make_config):
    """Returns a served model: (name, revision) -> ServedModel."""

    def build(name: str, revision: str = "sha256:0") -> ServedModel:
        network = make_network()
        config = make_config(network, name=name)
        checkpoint = Checkpoint(network, config, revision)
        return ServedModel.of(EulerLoRA(checkpoint, torch.device("cpu")))

    return build


def test_a_served_model_has_the_name_and_revision_of_its_checkpoint(serve) -> None:
    served = serve("one", "sha256:1")
    assert (served.name, served.revision) == ("one", "sha256:1")
    assert served.engine.model is served.model


def test_the_first_model_is_the_default(serve) -> None:
    first, second = serve("b"), serve("a")
    models = ServedModels([first, second])
    assert (list(models), len(models), models.default) == (["b", "a"], 2, "b")
    assert models.named(None) is models["b"] is first
    assert models.named("a") is second


@pytest.mark.parametrize("name", ["", "A", "xyzzy", "b "])
def test_an_unknown_name_is_not_echoed_and_the_served_ones_are_listed(serve, name) -> None:
    with pytest.raises(UnknownModel) as raised:
        ServedModels([serve("first"), serve("second")]).named(name)
    assert raised.value.detail == "the served models are: first, second"


def test_two_models_with_the_same_name_are_refused(serve) -> None:
    with pytest.raises(SettingsError, match="twin"):
        ServedModels([serve("twin"), serve("twin")])


def test_a_replacement_keeps_name_and_order_and_does_not_change_a_held_model(serve) -> None:
    models = ServedModels([serve("a", "sha256:1"), serve("b", "sha256:1")])
    held, listed = models["a"], models.items()
    models.replace(serve("a", "sha256:2"))
    assert models.named("a").revision == models.named(None).revision == "sha256:2"
    assert [(name, served.revision) for name, served in listed] == [
        ("a", "sha256:2"),
        ("b", "sha256:1"),
    ]
    assert held.revision == "sha256:1"


def test_models_can_be_replaced_during_iteration(serve) -> None:
    models = ServedModels([serve("a"), serve("b")])
    for name in models:
        models.replace(serve(name, "sha256:2"))
    assert [served.revision for served in models.values()] == ["sha256:2", "sha256:2"]


def test_a_model_that_is_not_served_cannot_be_replaced(serve) -> None:
    models = ServedModels([serve("a")])
    with pytest.raises(SettingsError, match="b"):
        models.replace(serve("b"))
    assert list(models) == ["a"]
