"""The registry of methods: which draw, their text, wrong names, and wrong entry points."""

from importlib.metadata import EntryPoint

import pytest

from eulerlora.methods.registry import DEFAULT_METHOD, NamedMethod, method_type, methods
from eulerlora.nn.method import MethodSettings
from eulerlora.sampling.masks import AdapterSettings
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.settings import Settings, validated

LORA = AdapterSettings(rank=20, min_rank=20)


class Config(Settings):
    method: NamedMethod = DEFAULT_METHOD


def test_the_papers_method_draws_unless_all_ranks_are_active() -> None:
    assert not method_type(DEFAULT_METHOD).is_sampled(LORA)
    assert method_type(DEFAULT_METHOD).is_sampled(AdapterSettings())


@pytest.mark.parametrize(
    ("method", "adapters", "text"),
    [
        (DEFAULT_METHOD, LORA, "not sampled"),
        (DEFAULT_METHOD, AdapterSettings(), "Kmin 10, T 2, sigma 1"),
    ],
)
def test_a_method_states_its_law(
    method: MethodSettings, adapters: AdapterSettings, text: str
) -> None:
    assert method_type(method).law_text(method, adapters) == text


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    with pytest.raises(SettingsError, match="'eulerlora'"):
        validated(Config, {"method": {"name": "dropout"}})
    with pytest.raises(SettingsError, match="method: "):
        validated(Config, {"method": {"kept": 0.5}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("eulerlora", "eulerlora.methods.eulerlora:EulerLoRAMethod"),  # of another method
        ("broken", "no_such_module:Method"),
        ("absent", "eulerlora.methods.eulerlora:Absent"),
        ("other-name", "eulerlora.methods.eulerlora:EulerLoRAMethod"),
        ("no-method", "eulerlora.methods.eulerlora:EulerLoRASettings"),
    ],
)
def test_a_wrong_entry_point_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    point = EntryPoint(name, value, "eulerlora.methods")
    monkeypatch.setattr("eulerlora.methods.registry.entry_points", lambda **_: [point])
    with pytest.raises(SettingsError, match=f"method '{name}'"):
        methods.__wrapped__()
