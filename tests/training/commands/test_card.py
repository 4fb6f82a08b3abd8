"""A card from a report, through the command line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from eulerlora import DataError
from training.commands.card import card_command


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path, str]]:
    """What cards were asked for; none is written."""
    asked: list[tuple[Path, Path, str]] = []
    monkeypatch.setattr(
        "training.commands.card.write_model_card", lambda *given: asked.append(given)
    )
    return asked


def test_the_card_is_made_of_checkpoint_report_and_comparison(
    left: list[tuple[Path, Path, str]], tmp_path: Path
) -> None:
    other = tmp_path / "other.md"
    other.write_text("LoRA: worse.\n")
    asked = ["run", "--report", "figures"]
    assert CliRunner().invoke(card_command, asked).exit_code == 0
    assert CliRunner().invoke(card_command, [*asked, "--comparison", str(other)]).exit_code == 0
    assert CliRunner().invoke(card_command, ["run"]).exit_code == 2
    place = (Path("run"), Path("figures"))
    assert left == [(*place, ""), (*place, "LoRA: worse.\n")]


def test_a_comparison_that_cannot_be_read_is_named(
    left: list[tuple[Path, Path, str]], tmp_path: Path
) -> None:
    (tmp_path / "latin.md").write_bytes(b"\xe9")
    for name in ("missing.md", "latin.md"):
        asked = ["run", "--report", "figures", "--comparison", str(tmp_path / name)]
        found = CliRunner().invoke(card_command, asked).exception
        assert isinstance(found, DataError)
        assert name in str(found)
    assert left == []
