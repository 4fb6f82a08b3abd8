"""Validation and atomic replacement of the key file."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from eulerlora_contract.errors import SettingsError
from service.auth.keys import Keys
from tests.full_disk import file_size_limit
from tests.program import refusal, succeed
from tests.service.key_files import client, write_keys

KEYS = [{"sha256": digit * 64, "created": "2026-11-21T14:42:00Z"} for digit in "abc"]


def line(client: str = "clinic", keys: object = KEYS[:1], **others: object) -> str:
    return json.dumps({"client": client, "keys": keys} | others)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def test_a_change_keeps_all_other_lines(path: Path) -> None:
    clients = client("clinic", "a", "b", requests_per_minute=7), client("lab", "c")
    before = write_keys(path, *clients).read_text()
    succeed("keys", "new", "ward", "--file", path)
    assert path.read_text().startswith(before)


def test_a_limit_is_read_and_empty_lines_are_ignored(path: Path) -> None:
    path.write_text(f"\n{json.dumps(client('clinic', 'a', requests_per_minute=7))}\n\n")
    only = Keys(path).client_with(b"a")
    assert only is not None
    assert (only.client, only.requests_per_minute) == ("clinic", 7)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (line(keys=KEYS), "keys: "),  # three keys
        (line(keys=[]), "keys: "),
        (line(keys=[KEYS[0] | {"sha256": "A" * 64}]), "keys.0.sha256: "),
        (line(keys=[KEYS[0] | {"created": "2026-11-21T14:42:00"}]), "keys.0.created: "),
        (line(client="a clinic"), "client: "),
        (line(client="clinic\n"), "client: "),
        (line(request_per_minute=7), "unknown key request_per_minute"),
        (line(requests_per_minute=0), "requests_per_minute: "),
        (line(requests_per_minute="7"), "requests_per_minute: "),
        (line(requests_per_minute=True), "requests_per_minute: "),
        (line()[:-1], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "expected a JSON object"),
        (line()[:-1] + ', "client": "lab"}', "duplicate field"),
        (line(keys=KEYS[1:2]), "duplicate client clinic"),
        (line(client="lab"), "duplicate key aaaaaaaa…"),
        (line(client="lab", keys=[KEYS[1], KEYS[1]]), "duplicate key bbbbbbbb…"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number(path: Path, text: str, reason: str) -> None:
    path.write_text(f"{line()}\n{text}\n")
    with pytest.raises(SettingsError) as caught:
        Keys(path)
    assert str(caught.value).startswith(f"{path}: line 2: {reason}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_reported_with_its_name(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match="not a readable key file") as caught:
        Keys(path)
    assert str(path) in str(caught.value)
    assert str(path) in refusal("keys", "list", "--file", path)


def test_a_pipe_is_refused_because_it_can_be_read_once(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(SettingsError, match="regular file"):
        Keys(path)


def test_a_new_file_is_private_and_an_existing_one_keeps_its_mode(path: Path) -> None:
    succeed("keys", "new", "clinic", "--file", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    succeed("keys", "new", "lab", "--file", path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_system_without_locks_is_named_and_the_keys_are_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    key = succeed("keys", "new", "clinic", "--file", path).out.strip()
    assert Keys(path).client_with(key.encode()) is not None
    assert f"{path}: on a file system without locks" in caplog.text


def test_a_full_disk_leaves_the_existing_file(path: Path) -> None:
    before = write_keys(path, client("clinic", "a")).read_bytes()
    with file_size_limit(100):
        assert "disk full" in refusal("keys", "new", "clinic", "--file", path)
    assert path.read_bytes() == before
