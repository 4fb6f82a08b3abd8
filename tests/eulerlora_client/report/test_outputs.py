"""The paths of the output files."""

from pathlib import Path

import pytest

from eulerlora_client.errors import OutputPathError
from eulerlora_client.report.exports import Outputs
from tests.eulerlora_client.runs import mel_policy, undecided


def test_a_file_that_fails_does_not_prevent_the_others(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "gone" / "rows.csv", tmp_path / "rows.jsonl", None)
    with pytest.raises(FileNotFoundError, match=r"rows\.csv"):
        outputs.write([undecided("a.png")], mel_policy())
    assert outputs.json_lines is not None
    assert outputs.json_lines.read_text().count("\n") == 1


def test_a_link_to_an_input_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.png").touch()
    (tmp_path / "rows.csv").symlink_to("image.png")
    with pytest.raises(OutputPathError, match="is an input file"):
        Outputs(tmp_path / "rows.csv", None, None).check([tmp_path / "image.png"])


def test_a_link_to_another_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").symlink_to("target.csv")
    outputs = Outputs(tmp_path / "rows.csv", None, None)
    outputs.check([])
    outputs.write([undecided("a.png")], mel_policy())
    assert "a.png" in (tmp_path / "target.csv").read_text()
    assert (tmp_path / "rows.csv").is_symlink()
