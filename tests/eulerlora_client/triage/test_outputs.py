"""Files that cannot be written cost no other."""

from pathlib import Path

import pytest

from eulerlora_client.triage.outputs import Outputs
from tests.eulerlora_client.runs import gap, mel_policy


def test_the_others_are_written_where_one_cannot_be(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "gone" / "rows.csv", tmp_path / "rows.jsonl", None)
    with pytest.raises(FileNotFoundError, match=r"rows\.csv"):
        outputs.write([gap("a.png")], mel_policy(), ())
    assert outputs.json_lines is not None
    assert outputs.json_lines.read_text().count("\n") == 1
