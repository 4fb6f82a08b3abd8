"""docs/client.md and the client's README: their Python runs, and the names are complete."""

import re
from pathlib import Path

import pytest

from eulerlora_client.commands.triage import triage_command
from eulerlora_client.report.exports import COLUMNS
from eulerlora_client.sdk.retry import RetryPolicy, Timeouts
from eulerlora_client.triage.files import SUPPORTED_EXTENSIONS, UNSUPPORTED_EXTENSIONS
from tests.eulerlora_client.runs import random_png

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
README = (ROOT / "eulerlora_client" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("text", "count"), [(DOCUMENT, 2), (README, 1)], ids=["docs", "README"])
def test_the_python_blocks_run(
    text: str,
    count: int,
    live: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == count
    (tmp_path / "lesion.png").write_bytes(random_png())
    (tmp_path / "notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        assert len(block.strip().splitlines()) <= 12
        code = block.replace("127.0.0.1:8000", f"127.0.0.1:{live}")
        exec(compile(code, "document", "exec"), {})
    assert "no prediction: unsupported_media" in capsys.readouterr().out


def test_every_column_extension_and_option_is_documented() -> None:
    for name in (*COLUMNS, *SUPPORTED_EXTENSIONS, *UNSUPPORTED_EXTENSIONS):
        assert name in DOCUMENT, name
    for option in triage_command.params:
        if option.param_type_name == "option":
            assert option.opts[0] in DOCUMENT, option.opts


def test_the_documented_seconds_are_the_defaults() -> None:
    assert (RetryPolicy().service_s, RetryPolicy().quota_s) == (30, 120)
    timeouts = Timeouts()
    assert (timeouts.connect_s, timeouts.write_s, timeouts.read_s) == (5, 60, 60)
    for seconds in (
        "30 seconds after",
        "120 seconds if",
        "5 to connect, 60 to send and 60 to read",
    ):
        assert seconds in DOCUMENT
