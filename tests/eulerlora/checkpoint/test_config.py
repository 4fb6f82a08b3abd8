"""eulerlora.checkpoint.config: valid and invalid contents of config.json."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from pydantic import ValidationError

from eulerlora.checkpoint.config import CheckpointConfig, PrecisionChange
from eulerlora.checkpoint.files import revision_of
from eulerlora_contract.checkpoints import Threshold
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import Options
from tests.conftest import DET, MARGINS, STOCH

Fields = dict[str, Any]


def threshold(**changes: object) -> Fields:
    """The fields of a threshold; changes of its options too."""
    fields = {"msp": 0.6, "kept": 0.95, "images": 50, "data": "x"}
    return fields | with_options(STOCH, changes)


def prediction_set(**changes: object) -> Fields:
    fields = {
        "coverage": 0.9, "thresholds": [0.5, 0.7, 1.0], "unit": "lesion",
        "units": [20, 30, 4], "confidences": [0.88, 0.96, 1.0],
        "data": "x", "data_sha256": "0" * 64,
    }  # fmt: skip
    return fields | with_options(DET, changes)


def with_options(options: Options, changes: Fields) -> Fields:
    """The changes of fields, those of options among them applied to `options`."""
    stated = {name: changes.get(name, value) for name, value in asdict(options).items()}
    others = {name: value for name, value in changes.items() if name not in stated}
    return {"options": stated, **others}


@pytest.fixture(scope="module")
def config(make_network, make_config) -> CheckpointConfig:
    thresholds = [threshold(), threshold(mode="det", samples=1, msp=0.7)]
    return make_config(make_network(), thresholds=thresholds)


@pytest.fixture
def fields(config: CheckpointConfig) -> Fields:
    return json.loads(config.model_dump_json())


def test_the_sampling_digest_is_that_of_weights_and_draws_only(config: CheckpointConfig) -> None:
    def digest(**changes: object) -> str:
        return config.model_copy(update=changes).sampling_digest

    unrelated = {
        "name": "other", "thresholds": (), "temperature": 2.0, "margins": None, "features": None,
        "prediction_sets": (), "provenance": {}, "classes": config.classes[::-1],
        "stoch_temperature": 0.5,
    }  # fmt: skip
    assert {digest(**{name: value}) for name, value in unrelated.items()} == {digest()}
    backbone = config.backbone.model_copy(update={"sha256": "0" * 64})
    adapters = config.adapters.model_copy(update={"sha256": "0" * 64})
    settings = config.adapters.settings.model_copy(update={"scale": 0.5})
    changed = [
        digest(backbone=backbone),
        digest(adapters=adapters),
        digest(adapters=config.adapters.model_copy(update={"settings": settings})),
        digest(sampler="balanced" if config.sampler == "independent" else "independent"),
        digest(views=8),
    ]
    assert len({digest(), *changed}) == 6


def msp(config: CheckpointConfig, *options: Any) -> float:
    threshold = config.threshold(config.options(*options))
    return threshold.msp


def test_a_threshold_is_selected_by_mode_and_samples(config: CheckpointConfig) -> None:
    assert msp(config, "stoch", 4) == 0.6
    assert msp(config, "det") == 0.7
    for samples in (1, 8):
        assert config.threshold(config.options("stoch", samples)) is None


def test_optional_parts_have_defaults(fields: Fields) -> None:
    del fields["sampler"], fields["thresholds"], fields["prediction_sets"]
    config = CheckpointConfig.model_validate_json(json.dumps(fields))
    assert (config.sampler, config.prediction_sets) == ("independent", ())
    assert config.threshold(config.options()) is None


@pytest.mark.parametrize("default", [{}, {"sampler": "balanced"}, {"views": 8}])
def test_a_threshold_is_valid_for_the_sampler_and_views_of_its_fit_whatever_the_default(
    fields: Fields, default: Fields
) -> None:
    config = CheckpointConfig.model_validate_json(json.dumps(fields | default))
    assert msp(config, "stoch", 4, "independent", 1) == 0.6
    assert (config.threshold(config.options("stoch", 4)) is None) == bool(default)
    for options in (
        config.options("stoch", 4, "balanced", 1),
        config.options("stoch", 4, "independent", 8),
        config.options(views=8),
    ):
        assert config.threshold(options) is None
    assert msp(config, "det", None, "balanced") == 0.7  # it draws nothing


def test_mode_stoch_has_the_temperature_of_det_unless_it_has_its_own(fields: Fields) -> None:
    for own, expected in ((None, 2.0), (0.5, 0.5)):
        changes = {"temperature": 2.0, "stoch_temperature": own}
        config = CheckpointConfig.model_validate_json(json.dumps(fields | changes))
        assert config.temperatures == {"det": 2.0, "stoch": expected}


def test_a_precision_selects_its_own_entries_and_otherwise_those_there_are(
    make_network, make_config
) -> None:
    thresholds = [
        threshold(msp=0.6),
        threshold(msp=0.61, precision="bfloat16"),
        threshold(mode="det", samples=1, msp=0.7),
    ]
    sets = [prediction_set(), prediction_set(precision="bfloat16", thresholds=[0.2, 0.3, 0.4])]
    config = make_config(make_network(), thresholds=thresholds, prediction_sets=sets)
    for precision, expected in (("float32", 0.6), ("bfloat16", 0.61)):
        assert msp(config, "stoch", 4, None, None, precision) == expected
    plain, rounded = config.in_precision("float32"), config.in_precision("bfloat16")
    assert [msp(plain, "stoch", 4), msp(rounded, "stoch", 4)] == [0.6, 0.61]
    assert msp(rounded, "det") == 0.7
    assert plain.prediction_sets == config.prediction_sets[:1]
    assert rounded.prediction_sets == config.prediction_sets[1:]
    assert rounded.in_precision("float32") == rounded  # nothing else is left


def set_at(*path: str | int, value: object) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        table: Any = fields
        for step in path[:-1]:
            table = table[step]
        table[path[-1]] = value

    return change


def removed(name: str) -> Callable[[Fields], None]:
    return lambda fields: fields.__delitem__(name)


def same_names(fields: Fields) -> None:
    fields["classes"][2]["name"] = fields["classes"][0]["name"]


def same_options(fields: Fields) -> None:
    fields["thresholds"].append(threshold(msp=0.1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((removed(name), name) for name in ("name", "backbone", "adapters", "classes")),
        (set_at("extra", value=1), "extra"),
        (set_at("thresholds", 0, "extra", value=1), "extra"),
        (set_at("format_version", value=1), "format_version"),
        (set_at("thresholds", 0, "options", "extra", value=1), "extra"),
        (set_at("thresholds", 0, "options", "samples", value=0), "samples"),
        *(
            (lambda fields, name=name: fields["thresholds"][0]["options"].pop(name), name)
            for name in asdict(STOCH)
        ),
        *((set_at("name", value=name), "name") for name in ("Has Spaces", "../up", "")),
        *((set_at("adapters", "sha256", value=v), "sha256") for v in ("A" * 64, "a" * 63)),
        (set_at("classes", value=[{"name": "a", "description": "b"}]), "classes"),
        (set_at("classes", 0, "description", value=""), "description"),
        (same_names, "two classes"),
        (set_at("target", value={"name": "bad", "classes": ["none"]}), "target"),
        (set_at("thresholds", 0, "msp", value=1.1), "msp"),
        (same_options, "two thresholds"),
        (set_at("thresholds", 0, "label_shares", value=[0.5, 0.5]), "label_shares"),
        (set_at("preprocessing", "size", value=64), "preprocessing"),
        *(
            (set_at("prediction_sets", value=sets), message)
            for sets, message in (
                ([prediction_set(coverage=1)], "coverage"),
                ([prediction_set(thresholds=[0.5, 0.7])], "prediction_sets"),
                ([prediction_set(), prediction_set()], "two prediction_sets"),
            )
        ),
    ],
)
def test_an_invalid_config_is_refused(
    fields: Fields, change: Callable[[Fields], None], message: str
) -> None:
    change(fields)
    with pytest.raises(ValidationError, match=message):
        CheckpointConfig.model_validate_json(json.dumps(fields))


def test_auto_compares_with_the_flags_of_four_samples(make_network, make_config) -> None:
    def config(*counts: int | str) -> CheckpointConfig:
        thresholds = tuple(
            Threshold(
                options=replace(STOCH, samples=samples),
                msp=index / 10,
                kept=0.9,
                images=9,
                data="synthetic",
            )
            for index, samples in enumerate(counts, 1)
        )
        return make_config(make_network(), thresholds=thresholds)

    actual = config(8, 4, 2, "auto")
    assert actual.stopping_rule().msp == 0.2
    with pytest.raises(SettingsError):
        actual.options("stoch", "auto")  # without margins
    assert msp(actual.model_copy(update={"margins": MARGINS}), "stoch", "auto") == 0.4
    assert config(8, "auto").stopping_rule().msp is None


def test_the_revision_covers_what_decides_auto_samples_and_auto_precision(
    make_network, make_config
) -> None:
    plain = make_config(make_network())
    fitted = replace(STOCH, samples="auto")
    auto = Threshold(options=fitted, msp=0.4, kept=0.9, images=9, data="synthetic")
    change = PrecisionChange(
        options=DET, images=9, probabilities=1, labels=0, flags=0, data="synthetic"
    )
    changes = {"thresholds": (auto,), "margins": MARGINS, "bfloat16": (change,)}
    changed = [plain.model_copy(update={name: value}) for name, value in changes.items()]
    for config in changed:
        assert CheckpointConfig.model_validate_json(config.model_dump_json()) == config
        assert config.sampling_digest == plain.sampling_digest  # which moves no seed
    assert len({revision_of(config) for config in (plain, *changed)}) == 4
