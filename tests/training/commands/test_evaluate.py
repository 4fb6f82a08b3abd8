"""Usage errors of `eulerlora evaluate`: one line each, and nothing is written.

The command `eulerlora card`.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner

from eulerlora import DataError
from tests.program import run
from training.commands.evaluate import card_command


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path, str, str]]:
    """The arguments of every call that writes a card; no card is written."""
    calls: list[tuple[Path, Path, str, str]] = []
    monkeypatch.setattr(
        "training.reporting.model_card.write_model_card", lambda *arguments: calls.append(arguments)
    )
    return calls


def test_the_card_is_made_of_checkpoint_report_comparison_and_performance(
    written: list[tuple[Path, Path, str, str]], tmp_path: Path
) -> None:
    comparison, performance = tmp_path / "comparison.md", tmp_path / "performance.md"
    comparison.write_text("LoRA: lower accuracy.\n")
    performance.write_text("PH2: lower specificity.\n")
    options = ["run", "--report", "report"]
    both = [*options, "--comparison", str(comparison), "--performance", str(performance)]
    assert CliRunner().invoke(card_command, options).exit_code == 0
    assert CliRunner().invoke(card_command, both).exit_code == 0
    assert CliRunner().invoke(card_command, ["run"]).exit_code == 2
    paths = (Path("run"), Path("report"))
    assert written == [
        (*paths, "", ""),
        (*paths, "LoRA: lower accuracy.\n", "PH2: lower specificity.\n"),
    ]


def test_an_unreadable_comparison_is_refused_with_its_name(
    written: list[tuple[Path, Path, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "latin.md").write_bytes(b"\xe9")
    for name in ("missing.md", "latin.md"):
        options = ["run", "--report", "report", "--comparison", str(tmp_path / name)]
        error = CliRunner().invoke(card_command, options).exception
        assert isinstance(error, DataError)
        assert name in str(error)
    assert written == []


def test_samples_with_mode_det_are_refused_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    done = run(
        "evaluate", tmp_path / "absent", "--data", tmp_path, "--mode", "det", "--samples", "8"
    )
    assert done.status == 2
    assert "expected --samples only with --mode stoch or both, got --mode det" in done.err
    assert len(done.err.strip().splitlines()) == 1
