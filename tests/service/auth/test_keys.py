"""Lookup of keys, also while the key file changes."""

import hmac
import logging
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.auth.keys import Keys
from tests.service.key_files import client, write_keys


def name_of(keys: Keys, key: bytes | str) -> str | None:
    client = keys.client_with(key.encode() if isinstance(key, str) else key)
    return client and client.client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    clients = client("clinic", "old", "new"), client("lab", "other")
    return write_keys(tmp_path / "keys.jsonl", *clients)


@pytest.fixture
def keys(path: Path) -> Keys:
    """Keys that check the file at every lookup."""
    return Keys(path, check_interval_s=0)


def test_every_hash_is_compared_for_every_key(keys: Keys, monkeypatch) -> None:
    compared: list[bytes] = []

    def counting(sent: bytes, stored: bytes) -> bool:
        compared.append(stored)
        return hmac.compare_digest(sent, stored)

    monkeypatch.setattr("service.auth.keys.hmac", SimpleNamespace(compare_digest=counting))
    for key in ("old", "other", "unknown"):
        compared.clear()
        name_of(keys, key)
        assert len(compared) == 3


def test_a_changed_file_applies_without_a_restart(path: Path, keys: Keys) -> None:
    write_keys(path, client("clinic", "new"), client("ward", "third"))
    sent = ("old", "new", "third", "other")
    assert [name_of(keys, key) for key in sent] == [None, "clinic", "ward", None]


def test_an_edit_that_keeps_size_inode_and_times_applies(path: Path, keys: Keys) -> None:
    before = path.stat()
    hashes = [sha256(key).hexdigest().encode() for key in (b"other", b"third")]
    with path.open("r+b") as file:
        content = file.read()
        file.seek(0)
        file.write(content.replace(*hashes))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    for field in ("st_size", "st_ino", "st_mtime_ns"):
        assert getattr(after, field) == getattr(before, field)
    assert [name_of(keys, key) for key in ("other", "third")] == [None, "lab"]


def test_the_file_is_not_read_within_the_check_interval(path: Path) -> None:
    keys = Keys(path, check_interval_s=3600)
    write_keys(path, client("ward", "third"))
    assert name_of(keys, "third") is None
    keys.reload_if_changed()
    assert name_of(keys, "third") == "ward"


def remove(path: Path) -> None:
    path.unlink()


def garble(path: Path) -> None:
    path.write_text("{")


@pytest.mark.parametrize("damage", [remove, garble])
def test_an_invalid_file_leaves_the_keys_valid_and_is_logged_once(
    path: Path, keys: Keys, caplog, damage: Callable[[Path], None]
) -> None:
    damage(path)
    with caplog.at_level(logging.INFO):
        assert [name_of(keys, "old") for _ in range(3)] == ["clinic"] * 3
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert str(path) in record.getMessage()
        write_keys(path, client("ward", "third"))
        assert [name_of(keys, key) for key in ("old", "third")] == [None, "ward"]


def test_an_empty_file_refuses_everyone_and_logs_it(path: Path, keys: Keys, caplog) -> None:
    path.write_text("")
    assert name_of(keys, "old") is None
    assert "every request will be refused" in caplog.text


def test_a_world_readable_file_logs_a_warning(path: Path, caplog) -> None:
    Keys(path)
    assert caplog.text == ""
    path.chmod(0o644)
    os.utime(path)
    Keys(path)
    assert "chmod o-r" in caplog.text
