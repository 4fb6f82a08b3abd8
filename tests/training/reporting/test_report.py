"""Figures as people read them."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from eulerlora import DataError
from eulerlora.uncertainty import summarise
from tests.training.made_up_report import REPORT
from training.evaluation.evaluate import Answers, Evaluation
from training.evaluation.report_schema import Subset, read_report, report_json
from training.evaluation.sensitivity import ClassFigures
from training.reporting.report import markdown, write_report
from training.reporting.tables import listed


@pytest.fixture
def evaluation() -> Evaluation:
    """REPORT with answers to draw, not those that its figures were computed from."""
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]], dtype=torch.float64)
    found = summarise(probabilities[:, None])
    answers = Answers(probabilities[:, None].log(), found, {"other": found}, {})
    return Evaluation(REPORT, ("red", "blue"), np.array([0, 0, 0]), [answers, answers])


def rows(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"| {start} ")]


def test_the_table_has_every_figure_of_both_modes_with_its_interval() -> None:
    text = markdown(REPORT)
    assert "squares, test part: 1,234 images of 800 lesions" in text
    assert "|  | det | stoch, 4 samples |" in text
    assert "| accuracy | 0.510 [0.460, 0.560] | 0.540 [0.490, 0.590] |" in text
    assert "| AURC | 0.120 [0.070, 0.170] | 0.120 [0.070, 0.170] |" in text
    assert "| macro-AUROC | n/a | n/a |" in text
    assert "| OOD threshold on MSP | 0.600 | n/a |" in text
    assert "| flagged, test part | 0.050 [0.000, 0.100] | n/a |" in text
    assert "1,000 resamples of the lesions" in text


def test_classes_have_exact_intervals_with_their_counts() -> None:
    red, *others = rows(markdown(REPORT), "red")
    assert red == (
        "| red | 12 | 0.250 [0.055, 0.572] (3/12) | 0.900 [0.555, 0.997] (9/10) "
        "| 0.750 [0.194, 0.994] (3/4) |"
    )
    assert others == [red]
    assert rows(markdown(REPORT), "blue")[0] == "| blue | 0 | n/a | n/a | n/a |"


def test_out_of_distribution_sets_are_shown_with_what_was_used_of_them() -> None:
    text = markdown(REPORT)
    assert "| **other** (2,000 of 10,000 images) |  |  |" in text
    assert "| AUROC | 0.910 [0.860, 0.960] | 0.910 [0.860, 0.960] |" in text
    assert "| flagged | 0.750 [0.700, 0.800] | n/a |" in text
    assert "Out-of-distribution" not in markdown(replace(REPORT, ood_images={}))


def test_groups_too_small_to_conclude_from_are_marked() -> None:
    text = markdown(REPORT)
    assert "sensitivity, red" in text
    large, small, rare = (rows(text, name)[0] for name in ("large", "small (too", "rare (too"))
    assert large.startswith("| large | 900 | 700 | 0.500 [0.450, 0.550] | 0.100 [0.050, 0.150] |")
    assert "| 49 | 40 |" in small
    assert "| 500 | 400 |" in rare
    assert len(rows(text, "**size**")) == 2


def test_without_a_target_groups_have_no_sensitivity_to_it() -> None:
    text = markdown(replace(REPORT, target=()))
    assert "sensitivity," not in text
    assert "macro-AUROC | flagged" in text
    assert "rare (too few)" not in text


def test_corruptions_are_told_with_what_a_high_auroc_means() -> None:
    text = markdown(REPORT)
    assert "100 of 1,234 test images, evenly spaced" in text
    assert "not plainly good" in text
    fog = rows(text, "fog")[0]
    assert fog.startswith("| fog | 0.400 [0.350, 0.450] | 0.600 [0.550, 0.650] | 1.100 [")
    assert rows(text, "none, the same images")[0].count("n/a") == 2
    assert "Corrupted" not in markdown(replace(REPORT, corrupted=Subset(0, 1234)))


def test_one_sample_is_not_many() -> None:
    one = replace(REPORT.modes[1], samples=1)
    assert [each.title for each in (*REPORT.modes, one)] == [
        "det",
        "stoch, 4 samples",
        "stoch, 1 sample",
    ]


def test_every_table_is_as_wide_as_its_head() -> None:
    tables = [part for part in markdown(REPORT).split("\n\n") if part.startswith("|")]
    assert len(tables) == 1 + 2 + 2 + 1 + 2
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_bar_in_a_name_does_not_break_its_row() -> None:
    nothing = ClassFigures(None, None, None)
    modes = [replace(each, classes={"a|b": nothing}) for each in REPORT.modes]
    assert r"| a\|b | 0 | n/a | n/a | n/a |" in markdown(replace(REPORT, modes=modes))


def test_names_are_listed_as_people_do() -> None:
    assert listed(["a", "b", "c"], "or") == "a, b or c"
    assert listed(["a"], "or") == "a"


def test_the_json_holds_what_the_tables_show_and_null_for_what_is_not_a_number(
    tmp_path: Path, evaluation: Evaluation
) -> None:
    write_report(tmp_path / "report", evaluation)
    found = json.loads(
        (tmp_path / "report" / "report.json").read_text(), parse_constant=pytest.fail
    )
    first = found["modes"][0]
    assert first["metrics"]["accuracy"] == pytest.approx({"value": 0.51, "low": 0.46, "high": 0.56})
    assert first["metrics"]["macro_auroc"] is None
    assert first["classes"]["red"]["sensitivity"]["hits"] == 3
    assert first["classes"]["blue"]["sensitivity"] is None
    assert found["ood_images"] == {"other": {"images": 2_000, "of": 10_000}}


def test_a_report_is_read_as_it_was_written(tmp_path: Path, evaluation: Evaluation) -> None:
    write_report(tmp_path, evaluation)
    found = read_report(tmp_path)
    assert report_json(found) == report_json(REPORT)
    assert markdown(found) == markdown(REPORT)


def test_what_is_no_report_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"report\.json"):
        read_report(tmp_path)
    (tmp_path / "report.json").write_text('{"model": "tiny"}')
    with pytest.raises(DataError, match=r"report\.json: revision"):
        read_report(tmp_path)


def test_the_markdown_names_the_data_and_shows_every_picture(
    tmp_path: Path, evaluation: Evaluation
) -> None:
    write_report(tmp_path, evaluation)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# tiny on squares, test part\n")
    assert markdown(evaluation.report).strip() in text
    shown = set(re.findall(r"!\[.+\]\((.+)\)", text))
    assert shown == {path.name for path in tmp_path.iterdir()} - {"report.md", "report.json"}
    assert len(shown) == 6


def test_a_report_that_was_interrupted_has_no_json(
    tmp_path: Path, evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, evaluation)

    def fail(figure: Figure) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr("training.reporting.report.png", fail)
    with pytest.raises(KeyboardInterrupt):
        write_report(tmp_path, evaluation)
    assert not (tmp_path / "report.json").exists()
    assert not list(tmp_path.glob(".*"))
