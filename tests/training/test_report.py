"""training.report and training.model_card: figures as people read them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eulerlora.config import CheckpointConfig
from tests.conftest import config_of, random_network
from training.evaluate import ModeReport, Report
from training.model_card import model_card
from training.report import markdown, write_report

REPORT = Report(
    model="tiny",
    revision="sha256:00",
    data="squares, test part",
    images=1234,
    ood_images={"other": 10_000},
    modes=[
        ModeReport(
            mode=mode,
            samples=samples,
            trajectories=2 * samples,
            metrics={
                "accuracy": 0.5 + samples / 100,
                "macro_f1": 0.4,
                "macro_auroc": 0.3,
                "ece": 0.2,
                "nll": 1.0,
                "brier": 0.7,
            },
            sensitivity={"red": 0.25, "blue": None},
            ood={"other": {"auroc": 0.91, "auprc": 0.92, "fpr_at_95_tpr": 0.93}},
            threshold=threshold,
            flagged={} if threshold is None else {"test": 0.05, "other": 0.75},
        )
        for mode, samples, threshold in (("det", 1, 0.6), ("stoch", 4, None))
    ],
)


def test_the_table_has_every_figure_of_both_modes() -> None:
    text = markdown(REPORT)
    assert "squares, test part: 1,234 images" in text
    assert "|  | det | stoch, 4 samples |" in text
    assert "| accuracy | 0.510 | 0.540 |" in text
    assert "| AUROC of MSP against other | 0.910 | 0.910 |" in text
    assert "| sensitivity, blue | n/a | n/a |" in text
    assert "| flagged, other (10,000 images) | 0.750 | n/a |" in text
    assert "| OOD threshold on MSP | 0.600 | n/a |" in text


def test_the_json_holds_what_the_table_shows(tmp_path: Path) -> None:
    write_report(tmp_path / "report", REPORT)
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert found["modes"][0]["metrics"]["accuracy"] == pytest.approx(0.51)
    assert markdown(REPORT) in (tmp_path / "report" / "report.md").read_text()


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
        "recipe": {"name": "tiny-pretrain"},
        "data": "other squares",
        "stages": [training],
        "test_accuracy": 0.5,
    }
    config = config_of(random_network(), provenance=facts)
    backbone = config.backbone.model_copy(update={"provenance": backbone_facts})
    return config.model_copy(update={"backbone": backbone})


@pytest.mark.parametrize("kind", ["ham10000", "imagefolder"])
def test_the_card_states_use_figures_data_and_licence(kind: str) -> None:
    config = config_with_facts(kind)
    card = model_card(config, REPORT)
    assert markdown(REPORT).strip() in card
    assert "1,000 steps in 2 min" in card
    assert "squares, lesion split" in card
    assert ("not a medical device" in card) == (kind == "ham10000")
    assert ("CC BY-NC 4.0" in card) == (kind == "ham10000")
    assert "Not evaluated yet" in model_card(config, None)


def test_the_card_names_the_classes_that_are_never_recognised() -> None:
    config = config_with_facts("imagefolder")
    blind = [replace(each, sensitivity={"red": 0.0, "blue": 0.1}) for each in REPORT.modes]
    assert "none of the test images of `red`.**" in model_card(config, replace(REPORT, modes=blind))
    assert "none of the test images" not in model_card(config, REPORT)
