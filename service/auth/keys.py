"""API keys: the key file, generation, hashing, and the lookup of a key's client.

The key file has one JSON line per client, with the hashes of its one or two active keys:

    {"client": "clinic", "keys": [{"sha256": "…", "created": "…Z"}], "requests_per_minute": 60}

Lines are independent: deleting a line revokes the access of its client, and errors are reported
with the line number. The file never contains a key.

A key consists of 256 random bits, and only its plain SHA-256 hash is stored. Slow, salted hashes
make brute force expensive for passwords, which have little entropy. They are not needed for random
keys of at least 112 bits (NIST SP 800-63B-3, 5.1.2.2), and would let an unauthenticated sender
consume CPU time.
"""

import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from eulerlora_contract.errors import SettingsError
from eulerlora_contract.output_files import atomic_write, check_writable, lock
from eulerlora_contract.settings import PositiveInt, Settings, Sha256, validated

MAX_KEYS = 2  # the old and the new key during rotation
_PRIVATE = 0o600
logger = logging.getLogger(__name__)
_KEY_PREFIX = "elk_"
_KEY_BYTES = 32
_CHECK_INTERVAL_S = 1.0


class ActiveKey(Settings):
    """A stored key.

    Attributes:
        sha256: Of the key, in lower-case hex.
    """

    sha256: Sha256
    created: AwareDatetime


class Client(Settings):
    """A client and its active keys.

    Attributes:
        requests_per_minute: None for no limit.
    """

    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    keys: Annotated[tuple[ActiveKey, ...], Field(min_length=1, max_length=MAX_KEYS)]
    requests_per_minute: Annotated[PositiveInt, Field(strict=True)] | None = None


def read_clients(path: Path) -> tuple[Client, ...]:
    """The clients in a key file, in its order; () for an empty file.

    Raises:
        SettingsError: Which names file and line, for a file that cannot be read, invalid JSON, an
            invalid client, and a duplicate name or key.
    """
    return _parse_clients(path, _read_content(path))


def _read_content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe can be read only once
            raise SettingsError(f"{path}: expected a regular file, as it is read again later")
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: not a readable key file ({error.strerror})") from error


def _parse_clients(path: Path, content: bytes) -> tuple[Client, ...]:
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not a readable key file (not UTF-8)") from error
    clients: list[Client] = []
    names: set[str] = set()
    hashes: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                client = _parse_client(line)
                _check_unique("client", [client.client], names)
                _check_unique("key", [key.sha256 for key in client.keys], hashes)
            except (ValueError, SettingsError) as error:
                raise SettingsError(f"{path}: line {number}: {error}") from error
            clients.append(client)
    return tuple(clients)


def _write_clients(path: Path, clients: Sequence[Client]) -> None:
    """Replaces the file atomically; keeps owner and mode, and creates a new file as private.

    Raises:
        StorageError: If the disk is full.
    """
    before = path.stat() if path.exists() else None
    mode = _PRIVATE if before is None else stat.S_IMODE(before.st_mode)
    with atomic_write(path, mode) as partial:
        lines = (
            json.dumps(client.model_dump(mode="json", exclude_none=True)) for client in clients
        )
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if before is not None:
            with suppress(PermissionError):  # only root can change the owner
                os.chown(partial, before.st_uid, before.st_gid)


@contextmanager
def updated_clients(path: Path) -> Iterator[dict[str, Client]]:
    """Yields the clients of a key file by name, and writes them when the block succeeds.

    Locks the folder of the file against other commands that change key files there. A missing file
    has no clients. A link stays, and the file that it leads to is changed: the service may read it
    by its own path, and a retired key must not stay valid there.

    Raises:
        OutputPathError: If the file cannot be written.
        SettingsError: As `read_clients`.
        StorageError: If the disk is full.
    """
    check_writable(path)
    path = Path(os.path.realpath(path))
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        if lock(descriptor, waits=True) is None:
            logger.warning(
                "%s: on a file system without locks; change its keys with one command at a time",
                path,
            )
        existing = read_clients(path) if path.exists() else ()
        clients = {client.client: client for client in existing}
        yield clients
        _write_clients(path, tuple(clients.values()))
    finally:
        os.close(descriptor)


def warn_if_world_readable(path: Path) -> None:
    """Logs a warning if every user of the machine can read the file."""
    if path.stat().st_mode & stat.S_IROTH:
        logger.warning("%s: readable by every user of this machine; run chmod o-r", path)


def _parse_client(line: str) -> Client:
    try:
        fields = json.loads(line, object_pairs_hook=_unique_fields)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON (error at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("not JSON (nested too deeply)") from error
    if not isinstance(fields, dict):
        raise ValueError("expected a JSON object")
    return validated(Client, fields)


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("duplicate field")
    return fields


def _check_unique(kind: str, values: Sequence[str], known: set[str]) -> None:
    """Adds the values to `known`; raises ValueError for one that is already there."""
    for value in values:
        if value in known:
            raise ValueError(f"duplicate {kind} {value if kind == 'client' else value[:8] + '…'}")
        known.add(value)


def new_key() -> str:
    """A random key of 256 bits."""
    return _KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def key_hash(key: bytes) -> bytes:
    """SHA-256, the form in which keys are stored and compared."""
    return hashlib.sha256(key).digest()


class Keys:
    """Looks up clients by key; applies changes of the key file.

    A change is found by content: an edit can keep size, inode and modification time.

    Args:
        check_interval_s: Minimum time between two reads of the file. If a later version of it is
            invalid, the previous clients stay valid, and the error is logged once per version.

    Raises:
        SettingsError: If the file is invalid at construction.
    """

    def __init__(self, path: Path, check_interval_s: float = _CHECK_INTERVAL_S) -> None:
        self.path = path
        self._check_interval_s = check_interval_s
        self._checked_at = time.monotonic()
        self._content: bytes | None = _read_content(path)
        self._clients = _clients_by_hash(path, self._content)

    def client_with(self, key: bytes) -> Client | None:
        """The client with a key, or None. Compares every stored hash in constant time."""
        if time.monotonic() - self._checked_at >= self._check_interval_s:
            self.reload_if_changed()
        sent = key_hash(key)
        owner = None
        for stored, client in self._clients:
            if hmac.compare_digest(sent, stored):
                owner = client
        return owner

    def reload_if_changed(self) -> None:
        """Reads the file again; applies its content if it has changed."""
        self._checked_at = time.monotonic()
        before, self._content = self._content, None
        try:
            self._content = _read_content(self.path)
            if self._content == before:
                return
            self._clients = _clients_by_hash(self.path, self._content)
        except (SettingsError, OSError) as error:
            if self._content is not None or before is not None:
                logger.error("%s; the previous keys stay valid", error)
        else:
            logger.info("%s: reloaded, %d active keys", self.path, len(self._clients))


def _clients_by_hash(path: Path, content: bytes) -> tuple[tuple[bytes, Client], ...]:
    clients = _parse_clients(path, content)
    if not clients:
        logger.warning("%s: contains no clients; every request will be refused", path)
    warn_if_world_readable(path)
    return tuple((bytes.fromhex(key.sha256), client) for client in clients for key in client.keys)
