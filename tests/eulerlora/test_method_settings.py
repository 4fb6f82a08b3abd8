"""eulerlora.methods.settings: which methods draw, their text, and wrong names."""

import pytest
from pydantic import TypeAdapter

from eulerlora.errors import SettingsError
from eulerlora.methods.settings import (
    EULERLORA,
    BatchEnsembleSettings,
    DropKeySettings,
    EulerLoRASettings,
    MethodSettings,
    RankDropoutSettings,
    TFBSettings,
    is_sampled,
    law_text,
    members_text,
)
from eulerlora.settings import AdapterSettings
from eulerlora_client.settings import Settings, validated
from tests.eulerlora.methods.conftest import METHODS

LORA = AdapterSettings(rank=20, min_rank=20)


class Config(Settings):
    """A config with a method."""

    method: MethodSettings = EULERLORA


def test_lora_and_ensembles_draw_nothing_and_all_other_methods_draw() -> None:
    assert not is_sampled(EULERLORA, LORA)
    assert is_sampled(EULERLORA, AdapterSettings())
    ensembles = {"batch-ensemble", "last-layer-ensemble"}
    others = [method for method in METHODS.values() if method.name != "eulerlora"]
    assert ensembles == {method.name for method in others if not is_sampled(method, LORA)}


@pytest.mark.parametrize(
    ("method", "adapters", "text"),
    [
        (EULERLORA, LORA, "not sampled"),
        (EULERLORA, AdapterSettings(), "Kmin 10, T 2, sigma 1"),
        (EulerLoRASettings(sides="input"), AdapterSettings(), "Kmin 10, T 2, sigma 1, sides input"),
        (RankDropoutSettings(kept=0.5), LORA, "rank-dropout, kept 0.5"),
        (DropKeySettings(), LORA, "dropkey"),
        (BatchEnsembleSettings(blocks=3), LORA, "batch-ensemble, blocks 3"),
        (
            TFBSettings(deviation=0.5, tolerance=0.1, anchors=8),
            LORA,
            "tfb, deviation 0.5, tolerance 0.1, anchors 8",
        ),
    ],
)
def test_a_method_states_its_law(
    method: MethodSettings, adapters: AdapterSettings, text: str
) -> None:
    assert law_text(method, adapters) == text


def test_members_are_adapters_or_have_the_name_of_their_method() -> None:
    assert members_text(EULERLORA, LORA) == "2 adapters of rank 20"
    assert members_text(BatchEnsembleSettings(), LORA) == "2 batch-ensemble members"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_stored_settings_are_read_back(method: MethodSettings) -> None:
    adapter: TypeAdapter[MethodSettings] = TypeAdapter(MethodSettings)
    assert adapter.validate_json(adapter.dump_json(method)) == method


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    with pytest.raises(SettingsError, match="method: expected a name of 'eulerlora', 'rank-dr"):
        validated(Config, {"method": {"name": "dropout"}})
    with pytest.raises(SettingsError, match="method: expected a table with a name"):
        validated(Config, {"method": {"kept": 0.5}})
