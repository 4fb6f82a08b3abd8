"""docs/client.md: its Python runs against a live service, and it names what there is."""

import re
from pathlib import Path

import pytest

from eulerlora_client.commands.triage import triage_command
from eulerlora_client.report.exports import COLUMNS
from eulerlora_client.sdk.retry import RetryPolicy, Timeouts
from eulerlora_client.triage.files import SUPPORTED_EXTENSIONS, UNSUPPORTED_EXTENSIONS
from tests.eulerlora_client.runs import random_png

DOCUMENT = (Path(__file__).parents[2] / "docs" / "client.md").read_text()


def test_the_python_blocks_run(
    live: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    (tmp_path / "lesion.png").write_bytes(random_png())
    (tmp_path / "notes.txt").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        assert len(block.strip().splitlines()) <= 12
        code = block.replace("127.0.0.1:8000", f"127.0.0.1:{live}")
        exec(compile(code, "client.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "no answer: unsupported_media" in printed
    assert "request_id=" in printed


def test_it_names_every_column_extension_and_option() -> None:
    for name in (*COLUMNS, *SUPPORTED_EXTENSIONS, *UNSUPPORTED_EXTENSIONS):
        assert name in DOCUMENT, name
    for option in triage_command.params:
        if option.param_type_name == "option":
            assert option.opts[0] in DOCUMENT, option.opts


def test_it_states_the_seconds_as_they_are() -> None:
    assert (RetryPolicy().service_s, RetryPolicy().quota_s) == (30, 120)
    assert "ends 30 seconds after the first attempt, or 120" in " ".join(DOCUMENT.split())
    assert (Timeouts().connect_s, Timeouts().write_s, Timeouts().read_s) == (5, 60, 60)
    assert "5 to connect, 60 to send and 60 to read" in DOCUMENT
