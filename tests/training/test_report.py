"""training.report and training.model_card: figures as people read them."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from eulerlora.config import CheckpointConfig
from tests.conftest import config_of, random_network
from training.evaluate import Answers, Evaluation, ModeReport, Report, Subset
from training.model_card import model_card
from training.report import markdown, write_report
from training.selective import risk_coverage
from training.sensitivity import Sensitivity, sensitivity

REPORT = Report(
    model="tiny",
    revision="sha256:00",
    data="squares, test part",
    images=1234,
    ood_images={"other": Subset(2_000, 10_000)},
    modes=[
        ModeReport(
            mode=mode,
            samples=samples,
            sampler=None if mode == "det" else "independent",
            trajectories=2 * samples,
            metrics={
                "accuracy": 0.5 + samples / 100,
                "macro_f1": 0.4,
                "macro_auroc": math.nan,
                "ece": 0.2,
                "nll": 1.0,
                "brier": 0.7,
            },
            selective={"aurc": 0.12, "augrc": 0.08},
            sensitivity={"red": Sensitivity(3, 12, 0.25, 0.05, 0.57), "blue": None},
            ood={"other": {"auroc": 0.91, "auprc": 0.92, "fpr_at_95_tpr": 0.93}},
            threshold=threshold,
            flagged={} if threshold is None else {"test": 0.05, "other": 0.75},
        )
        for mode, samples, threshold in (("det", 1, 0.6), ("stoch", 4, None))
    ],
)


@pytest.fixture
def evaluation() -> Evaluation:
    """REPORT with answers to draw, not those that its figures were computed from."""
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]], dtype=torch.float64)
    msp = probabilities.amax(dim=-1)
    curve = risk_coverage(msp.numpy(), np.array([False, True, False]))
    answers = Answers(probabilities, msp, {"other": msp / 2}, curve)
    labels = torch.tensor([0, 0, 0])
    return Evaluation(REPORT, ("red", "blue"), labels, [answers, answers])


def test_the_table_has_every_figure_of_both_modes() -> None:
    text = markdown(REPORT)
    assert "squares, test part: 1,234 images" in text
    assert "|  | det | stoch, 4 samples |" in text
    assert "| accuracy | 0.510 | 0.540 |" in text
    assert "| AURC | 0.120 | 0.120 |" in text
    assert "| red | 12 | 0.250 [0.050, 0.570] (3) | 0.250 [0.050, 0.570] (3) |" in text
    assert "| blue | 0 | n/a | n/a |" in text
    assert "| **other** (2,000 of 10,000 images) |  |  |" in text
    assert "| AUROC | 0.910 | 0.910 |" in text
    assert "| flagged | 0.750 | n/a |" in text
    assert "| OOD threshold on MSP | 0.600 | n/a |" in text
    assert "NaN" not in text


def test_one_sample_is_not_many() -> None:
    one = replace(REPORT.modes[1], samples=1)
    assert [each.title for each in (*REPORT.modes, one)] == [
        "det",
        "stoch, 4 samples",
        "stoch, 1 sample",
    ]


def test_every_table_is_as_wide_as_its_head() -> None:
    tables = [part for part in markdown(REPORT).split("\n\n") if part.startswith("|")]
    assert len(tables) == 3
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_bar_in_a_name_does_not_break_its_row() -> None:
    modes = [replace(each, sensitivity={"a|b": None}) for each in REPORT.modes]
    assert r"| a\|b | 0 | n/a | n/a |" in markdown(replace(REPORT, modes=modes))


def test_the_json_holds_what_the_tables_show_and_null_for_what_is_not_a_number(
    tmp_path: Path, evaluation: Evaluation
) -> None:
    write_report(tmp_path / "report", evaluation)
    found = json.loads(
        (tmp_path / "report" / "report.json").read_text(), parse_constant=pytest.fail
    )
    first = found["modes"][0]
    assert first["metrics"]["accuracy"] == pytest.approx(0.51)
    assert first["metrics"]["macro_auroc"] is None
    assert first["sensitivity"] == {
        "red": {"hits": 3, "images": 12, "sensitivity": 0.25, "low": 0.05, "high": 0.57},
        "blue": None,
    }
    assert first["selective"] == {"aurc": 0.12, "augrc": 0.08}
    assert found["ood_images"] == {"other": {"images": 2_000, "of": 10_000}}


def test_the_markdown_names_the_data_and_shows_every_picture(
    tmp_path: Path, evaluation: Evaluation
) -> None:
    write_report(tmp_path, evaluation)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# tiny on squares, test part\n")
    assert markdown(evaluation.report).strip() in text
    shown = set(re.findall(r"!\[.+\]\((.+)\)", text))
    assert shown == {path.name for path in tmp_path.iterdir()} - {"report.md", "report.json"}
    assert len(shown) == 7


def test_a_report_that_was_interrupted_has_no_json(
    tmp_path: Path, evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, evaluation)

    def fail(figure: Figure) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("training.report.png", fail)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, evaluation)
    assert not (tmp_path / "report.json").exists()
    assert not list(tmp_path.glob(".*"))


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


def test_the_card_states_the_backbone_s_top_one_on_each_of_its_sets() -> None:
    config = config_with_facts("imagefolder")
    assert "top-1 0.500 on the test part of other squares; frozen" in model_card(config, None)
    facts = config.backbone.provenance | {"top_one": {"circles": 0.25, "lines": 0.75}}
    backbone = config.backbone.model_copy(update={"provenance": facts})
    card = model_card(config.model_copy(update={"backbone": backbone}), None)
    assert "top-1 0.250 on the test part of circles, top-1 0.750 on the test part of lines" in card


def test_the_card_names_the_classes_that_are_never_recognised() -> None:
    config = config_with_facts("imagefolder")
    found = {"red": sensitivity(0, 9), "blue": sensitivity(1, 9)}
    blind = [replace(each, sensitivity=found) for each in REPORT.modes]
    assert "none of the test images of `red`.**" in model_card(config, replace(REPORT, modes=blind))
    assert "none of the test images" not in model_card(config, REPORT)
