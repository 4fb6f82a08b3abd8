"""What a reader of a checkpoint's README.md is told."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eulerlora import DataError
from eulerlora.checkpoint import stored_revision, write_config
from eulerlora.config import CheckpointConfig
from tests.conftest import config_of, random_network
from tests.training.made_up_report import REPORT
from training.evaluation.report_schema import report_json
from training.evaluation.sensitivity import ClassFigures, proportion
from training.reporting.card_origin import energy
from training.reporting.model_card import leave_card, model_card
from training.reporting.report import figure_sections
from training.reporting.tables import metrics_table


def config_with_facts(kind: str) -> CheckpointConfig:
    """A config with the provenance that training writes."""
    training = {"steps": 1000, "seconds": 125.0, "final_loss": 0.5}
    facts = {
        "recipe": {"name": "tiny-run", "data": {"kind": kind}},
        "seed": 0,
        "commit": "abc",
        "date": "2026-01-01",
        "hardware": "1 CPU thread",
        "data": "squares, lesion split",
        "training": training,
    }
    backbone_facts = {
        "recipe": {"name": "tiny-pretrain", "data": [{"kind": "imagefolder"}]},
        "seed": 1,
        "commit": "123",
        "hardware": "2 CPU threads",
        "data": "other squares",
        "stages": [training],
        "top_one": {"circles": 0.25, "lines": 0.75},
    }
    config = config_of(random_network(), provenance=facts)
    backbone = config.backbone.model_copy(update={"provenance": backbone_facts})
    return config.model_copy(update={"backbone": backbone})


@pytest.mark.parametrize("kind", ["ham10000", "imagefolder"])
def test_the_card_states_use_figures_data_and_licence(kind: str) -> None:
    config = config_with_facts(kind)
    card = model_card(config, REPORT)
    assert metrics_table(REPORT) in card
    for title, text in figure_sections(REPORT):
        assert f"## {title}\n\n{text}\n" in card
    assert "![Reliability diagrams, det and stoch, 4 samples](reliability.png)" in card
    assert "1,000 steps in 2 min" in card
    assert "squares, lesion split" in card
    assert ("not a medical device" in " ".join(card.split())) == (kind == "ham10000")
    assert ("CC BY-NC 4.0" in card) == (kind == "ham10000")
    assert "Not evaluated yet" in model_card(config, None)


def test_use_and_misuse_come_before_the_figures_and_origin_after_them() -> None:
    card = model_card(config_with_facts("ham10000"), REPORT, "# LoRA\n\nWorse.")
    titles = [line for line in card.splitlines() if line.startswith("#")]
    wanted = ["# tiny", "## What it is for", "## What it must not be used for", "## Figures",
              "## By class", "## Comparison", "## Limits", "## How to rebuild it"]  # fmt: skip
    positions = [titles.index(each) for each in wanted]
    assert positions == sorted(positions)
    assert "## LoRA\n\nWorse." in card
    assert "--report figures/ --comparison comparison.md\n" in card
    assert "Comparison" not in model_card(config_with_facts("ham10000"), REPORT)


def test_the_card_states_the_backbone_s_top_one_on_each_of_its_sets() -> None:
    card = model_card(config_with_facts("imagefolder"), None)
    assert "top-1 0.250 on the test part of circles, top-1 0.750 on the test part of lines" in card


def test_the_card_says_of_a_backbone_of_unknown_origin_that_it_is_one() -> None:
    config = config_with_facts("imagefolder")
    backbone = config.backbone.model_copy(update={"provenance": {"found": "on a shelf"}})
    card = model_card(config.model_copy(update={"backbone": backbone}), REPORT)
    assert "What its backbone was pretrained on is not known." in card
    assert "a file that does not say how its weights were made; frozen" in card
    assert f"SHA-256 of its tensors {backbone.sha256}" in card
    assert "--out run/ --seed 0 --set backbone.weights=BACKBONE\n" in card
    assert "eulerlora pretrain" not in card


def test_the_card_states_the_licences_of_what_the_backbone_was_pretrained_on() -> None:
    config = config_with_facts("ham10000")
    recipe = {"name": "tiny-pretrain", "data": [{"kind": "tiny-imagenet"}, {"kind": "imagefolder"}]}
    backbone = config.backbone.model_copy(
        update={"provenance": config.backbone.provenance | {"recipe": recipe}}
    )
    card = model_card(config.model_copy(update={"backbone": backbone}), None)
    _, data = card.split("## Data and licence")
    assert "pretrained on other squares. Tiny ImageNet (Stanford" in data
    assert "not part of this checkpoint" not in data


def test_the_card_names_the_classes_that_are_never_recognised() -> None:
    config = config_with_facts("imagefolder")
    never, once = (ClassFigures(proportion(hits, 9), None, None) for hits in (0, 1))
    blind = [replace(each, classes={"red": never, "blue": once}) for each in REPORT.modes]
    assert "none of the test images of `red`.**" in model_card(config, replace(REPORT, modes=blind))
    assert "none of the test images" not in model_card(config, REPORT)


def test_energy_is_counted_or_estimated_aloud_or_not_known() -> None:
    counted = {"energy_joules": {"cpu package 0": 1.8e6, "gpu 0": 1.8e6}}
    assert energy(counted, 60, "a GPU").startswith("1.000 kWh counted by cpu package 0, gpu 0")
    estimated = energy({}, 3600, "2 CPU threads")
    assert estimated.startswith("about 0.020 kWh, an estimate")
    assert energy({}, 3600, "NVIDIA H100") == "energy not known"


def test_the_commands_that_rebuild_it_are_those_that_made_it() -> None:
    config = config_with_facts("imagefolder")
    asked = {"file": "tiny.toml", "variant": "b", "overrides": ["seed=0", "training.loss='mean'"]}
    recipe = config.provenance["recipe"] | asked
    config = config.model_copy(update={"provenance": config.provenance | {"recipe": recipe}})
    card = model_card(config, REPORT)
    for line in (
        "git checkout 123",
        "eulerlora pretrain training/recipes/tiny-pretrain.toml --data DIR --out backbone/ "
        "--seed 1",
        "git checkout abc",
        "eulerlora train training/recipes/tiny.toml --data DIR --out run/ --variant b --seed 0 "
        """--set 'training.loss='"'"'mean'"'"'' """
        "--set backbone.weights=$PWD/backbone/backbone.safetensors",
        "eulerlora evaluate run/ --data DIR --mode both --samples 4 --ood DIR/other "
        "--ood-images 2000 --corrupted-images 100 --out figures/",
        "eulerlora card run/ --report figures/",
    ):
        assert f"\n{line}\n" in card


@pytest.fixture
def evaluated(checkpoint_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint with what training writes of itself, and the folder of a report on it."""
    folder = Path(shutil.copytree(checkpoint_folder, tmp_path / "run"))
    write_config(folder, config_with_facts("imagefolder"))
    report = tmp_path / "report"
    report.mkdir()
    found = replace(REPORT, revision=stored_revision(folder))
    (report / "report.json").write_bytes(report_json(found))
    (report / "reliability.png").write_bytes(b"a picture")
    return folder, report


def test_the_card_and_its_picture_are_those_of_the_report_and_change_nothing_else(
    evaluated: tuple[Path, Path],
) -> None:
    folder, report = evaluated
    before = stored_revision(folder)
    leave_card(folder, report)
    assert (folder / "README.md").read_text() == model_card(
        config_with_facts("imagefolder"), replace(REPORT, revision=before)
    )
    assert (folder / "reliability.png").read_bytes() == b"a picture"
    assert stored_revision(folder) == before


def test_a_report_on_another_checkpoint_makes_no_card(evaluated: tuple[Path, Path]) -> None:
    folder, report = evaluated
    (report / "report.json").write_bytes(report_json(REPORT))
    before = (folder / "README.md").read_bytes()
    with pytest.raises(DataError, match="is of revision sha256:00"):
        leave_card(folder, report)
    assert (folder / "README.md").read_bytes() == before
    assert not (folder / "reliability.png").exists()
