"""`eulerlora policy queue`."""

from pathlib import Path
from unittest.mock import patch

import pytest

from eulerlora_client.commands import program as program_module
from eulerlora_client.commands.policy import queue_command
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.report.exports import write_json_lines
from eulerlora_client.report.ranking import TriageRow
from tests.eulerlora_client.triage_rows import (
    SHARP,
    UNFAMILIAR,
    failed,
    fixed_policy,
    make_prediction,
    passes,
    triaged,
)
from tests.program import Completed, run


def queue(*arguments: str | Path) -> Completed:
    with patch.object(program_module, "program", queue_command):
        return run(*arguments)


def row(path: str, label: str, unfamiliar: bool = False) -> TriageRow:
    changes = UNFAMILIAR if unfamiliar else {}
    prediction = make_prediction(passes(label, 7, 0.2, seed=0), **changes)
    return triaged(Path(path), prediction, SHARP, fixed_policy())


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    clinic, objects = tmp_path / "clinic.jsonl", tmp_path / "objects.jsonl"
    lesions = [
        row("clinic/mel/1.jpg", "mel"),
        row("clinic/mel/2.jpg", "mel", unfamiliar=True),
        row("clinic/nv/1.jpg", "nv"),
        failed(Path("clinic/nv/2.jpg"), "unusable_image", "broken"),
    ]
    write_json_lines(clinic, lesions)
    write_json_lines(objects, [row("objects/chair.jpg", "mel", unfamiliar=True)])
    return clinic, objects


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_set_has_its_shares_before_and_after(files: tuple[Path, Path]) -> None:
    clinic, objects = files
    done = queue(clinic, "--everyday", objects, "--melanoma", "*/mel/*")
    assert (done.status, done.err) == (0, "")
    lines = done.out.splitlines()
    header, _, *shares = (cells(line) for line in lines[3:9])
    assert lines[0] == f"Policy version {default_policy().version}, {default_policy().hash}."
    assert header == [
        "set", "", "pictures", "urgent", "unfamiliar", "refer", "retake", "failed", "routine"
    ]  # fmt: skip
    assert shares == [
        ["clinic", "before", "4", "50.0", "0.0", "0.0", "0.0", "25.0", "25.0"],
        ["clinic", "after", "4", "25.0", "25.0", "0.0", "0.0", "25.0", "25.0"],
        ["objects", "before", "1", "100.0", "0.0", "0.0", "0.0", "0.0", "0.0"],
        ["objects", "after", "1", "0.0", "100.0", "0.0", "0.0", "0.0", "0.0"],
    ]


def test_melanomas_and_the_first_everyday_picture_are_counted(files: tuple[Path, Path]) -> None:
    clinic, objects = files
    done = queue(clinic, "--everyday", objects, "--melanoma", "*/mel/*")
    melanomas = [cells(line) for line in done.out.splitlines() if "| clinic" in line][2:]
    assert melanomas == [
        ["clinic", "before", "2", "2", "0", "0", "0", "0", "0"],
        ["clinic", "after", "2", "1", "1", "0", "0", "0", "0"],
    ]
    assert "everyday picture is number 3 of 5 before, and number 3 after" in done.out


def test_without_melanomas_and_everyday_pictures_there_is_one_table(
    files: tuple[Path, Path],
) -> None:
    done = queue(files[0])
    assert done.status == 0
    assert "melanoma" not in done.out
    assert "everyday" not in done.out


@pytest.mark.parametrize("text", ["{}\n", "[]\n", "no json\n", '{"file": 3}\n'])
def test_a_file_of_other_content_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    done = queue(path)
    assert (done.status, done.out) == (1, "")
    assert f"{path}, line 1: expected a row of `eulerlora triage --json-lines`" in done.err
