"""`eulerlora keys`: keys are shown once, rotated and retired; the file stores only hashes."""

import shlex
from hashlib import sha256
from pathlib import Path

import pytest

from service.auth.keys import Keys
from tests.program import refusal, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.jsonl"


def create(path: Path, name: str = "clinic", *options: str) -> str:
    done = run("keys", "new", name, "--file", path, *options)
    assert done.status == 0, done.err
    assert done.out.count("\n") == 1
    return done.out.strip()


def is_valid(path: Path, key: str) -> bool:
    return Keys(path).client_with(key.encode()) is not None


def test_a_new_key_has_256_random_bits(path: Path) -> None:
    keys = {create(path, f"client-{number}") for number in range(10)}
    assert len(keys) == 10
    assert all(key.startswith("elk_") and len(key) == 4 + 43 for key in keys)


def test_a_new_key_is_printed_once_and_only_its_hash_is_stored(path: Path) -> None:
    key = create(path)
    assert is_valid(path, key)
    assert key not in path.read_text()


def test_rotation_creates_a_new_key_and_retires_the_older_one(path: Path) -> None:
    older, other = create(path), create(path, "lab")
    newer = create(path)
    assert all(is_valid(path, key) for key in (older, newer, other))
    assert run("keys", "retire", "clinic", "--file", path).status == 0
    assert [is_valid(path, key) for key in (older, newer, other)] == [False, True, True]


def test_the_newer_of_two_keys_is_retired_on_request(path: Path) -> None:
    older, newer = create(path), create(path)
    command = ("keys", "retire", "clinic", "--newer", "--file", path)
    assert run(*command).status == 0
    assert [is_valid(path, key) for key in (older, newer)] == [True, False]
    before = path.read_bytes()
    assert run(*command).status == 1  # the last key has no newer one
    assert path.read_bytes() == before


def test_a_key_is_retired_in_the_file_that_a_link_leads_to(path: Path, tmp_path: Path) -> None:
    key, link = create(path), tmp_path / "link" / "keys.jsonl"
    link.parent.mkdir()
    link.symlink_to(path)
    assert run("keys", "retire", "clinic", "--file", link).status == 0
    assert link.is_symlink()
    assert not is_valid(path, key)


def test_a_third_key_is_refused_with_advice(path: Path) -> None:
    create(path)
    create(path)
    before = path.read_bytes()
    done = run("keys", "new", "clinic", "--file", path)
    assert (done.status, done.out) == (1, "")
    assert path.read_bytes() == before
    advised = shlex.split(done.err.partition(": eulerlora ")[2])
    assert run(*advised).status == 0
    create(path)


def test_retiring_the_last_key_removes_the_client(path: Path) -> None:
    key = create(path)
    done = run("keys", "retire", "clinic", "--file", path)
    assert (done.status, "no longer a client" in done.out) == (0, True)
    assert not is_valid(path, key)
    assert run("keys", "retire", "clinic", "--file", path).status == 1


def test_a_limit_stays_until_it_is_replaced(path: Path) -> None:
    def limit(key: str) -> int | None:
        client = Keys(path).client_with(key.encode())
        assert client is not None
        return client.requests_per_minute

    create(path, "clinic", "--requests-per-minute", "5")
    assert limit(create(path)) == 5
    run("keys", "retire", "clinic", "--file", path)
    assert limit(create(path, "clinic", "--requests-per-minute", "9")) == 9


def test_the_list_shows_clients_and_no_keys(path: Path) -> None:
    key = create(path, "clinic", "--requests-per-minute", "5")
    create(path, "lab")
    done = run("keys", "list", "--file", path)
    stored = sha256(key.encode()).hexdigest()
    assert done.status == 0
    assert "clinic  5 a minute\n" in done.out
    assert "lab  no limit\n" in done.out
    assert stored[:8] in done.out
    assert stored not in done.out
    assert key not in done.out


@pytest.mark.parametrize("name", ["a clinic", "../x", "", "ä"])
def test_an_unsafe_client_name_is_refused_without_writing(path: Path, name: str) -> None:
    done = run("keys", "new", name, "--file", path)
    assert (done.status, done.out, done.err.count("\n")) == (1, "", 1)
    assert not path.exists()


def test_a_key_file_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "keys.jsonl"
    error = refusal("keys", "new", "clinic", "--file", path, status=2)
    assert str(path) in error and "Errno" not in error
