"""Whose key it is, also while the file changes."""

import hmac
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from eulerlora.errors import SettingsError
from service.auth import keys as keys_module
from service.auth.key_file import write_clients
from service.auth.keys import Keys, new_key
from tests.service.key_clients import client


def name_of(keys: Keys, key: bytes | str) -> str | None:
    found = keys.client_of(key.encode() if isinstance(key, str) else key)
    return found and found.client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.jsonl"
    write_clients(path, [client("clinic", "old", "new"), client("lab", "other")])
    return path


@pytest.fixture
def keys(path: Path) -> Keys:
    """They look at the file for every key."""
    return Keys(path, recheck_s=0)


def test_a_new_key_is_256_random_bits_and_never_the_same() -> None:
    made = {new_key() for _ in range(50)}
    assert len(made) == 50
    assert all(key.startswith("elk_") and len(key) == 4 + 43 for key in made)


def test_both_active_keys_of_a_client_are_its_own(keys: Keys) -> None:
    shown = ("old", "new", "other", "older", "")
    assert [name_of(keys, key) for key in shown] == ["clinic", "clinic", "lab", None, None]


@pytest.mark.parametrize("key", ["schlüssel".encode(), b"\xff\x00", b"k" * 1_000_000])
def test_any_bytes_are_a_key_that_nobody_has(keys: Keys, key: bytes) -> None:
    assert name_of(keys, key) is None


def test_every_hash_is_compared_whatever_the_key(keys: Keys, monkeypatch) -> None:
    compared: list[bytes] = []

    def counting(shown: bytes, stored: bytes) -> bool:
        compared.append(stored)
        return hmac.compare_digest(shown, stored)

    monkeypatch.setattr(keys_module, "hmac", SimpleNamespace(compare_digest=counting))
    for key in ("old", "other", "unknown"):
        compared.clear()
        name_of(keys, key)
        assert len(compared) == 3


def test_a_changed_file_counts_without_a_restart(path: Path, keys: Keys) -> None:
    write_clients(path, [client("clinic", "new"), client("ward", "third")])
    shown = ("old", "new", "third", "other")
    assert [name_of(keys, key) for key in shown] == [None, "clinic", "ward", None]


def test_between_two_looks_the_file_is_left_alone(path: Path) -> None:
    keys = Keys(path, recheck_s=3600)
    write_clients(path, [client("ward", "third")])
    assert name_of(keys, "third") is None
    keys.reread()
    assert name_of(keys, "third") == "ward"


def remove(path: Path) -> None:
    path.unlink()


def garble(path: Path) -> None:
    path.write_text("{")


@pytest.mark.parametrize("damage", [remove, garble])
def test_a_broken_file_keeps_the_keys_and_is_logged_once_until_it_is_whole(
    path: Path, keys: Keys, caplog, damage: Callable[[Path], None]
) -> None:
    damage(path)
    with caplog.at_level(logging.INFO):
        assert [name_of(keys, "old") for _ in range(3)] == ["clinic"] * 3
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert str(path) in record.getMessage()
        write_clients(path, [client("ward", "third")])
        assert [name_of(keys, key) for key in ("old", "third")] == [None, "ward"]


def test_a_broken_file_at_the_start_is_refused(path: Path) -> None:
    garble(path)
    with pytest.raises(SettingsError, match="line 1"):
        Keys(path)


def test_an_emptied_file_lets_nobody_in_and_says_so(path: Path, keys: Keys, caplog) -> None:
    path.write_text("")
    assert name_of(keys, "old") is None
    assert "nobody may ask" in caplog.text


def test_a_file_that_everybody_may_read_is_warned_of(path: Path, caplog) -> None:
    Keys(path)
    assert caplog.text == ""
    path.chmod(0o644)
    os.utime(path)
    Keys(path)
    assert "chmod o-r" in caplog.text
