"""The file of keys: one JSON line a client, with the hashes of its one or two active keys.

    {"client": "clinic", "keys": [{"sha256": "…", "created": "…Z"}], "requests_per_minute": 60}

A line is whole in itself: deleting it shuts a client out, and a slip of the hand is told with its
line. The key itself is nowhere in the file.
"""

import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AwareDatetime, Field

from eulerlora.atomic_files import whole_file
from eulerlora.errors import SettingsError
from eulerlora.settings import PositiveInt, Settings, validated

MAX_KEYS = 2  # the old one and the new one, while a client changes over
PRIVATE = 0o600

logger = logging.getLogger(__name__)

ClientName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class ActiveKey(Settings):
    """What is kept of a key: its SHA-256 in lower-case hex, and when it was made."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: AwareDatetime


class Client(Settings):
    """Who may ask, with which keys, and how often; None is as often as they like."""

    client: ClientName
    keys: Annotated[tuple[ActiveKey, ...], Field(min_length=1, max_length=MAX_KEYS)]
    requests_per_minute: Annotated[PositiveInt, Field(strict=True)] | None = None

    def with_key(self, sha256: str, created: datetime) -> "Client":
        """With one more key. Raises SettingsError where that is a third."""
        if len(self.keys) == MAX_KEYS:
            raise SettingsError(
                f"{self.client} has {MAX_KEYS} active keys, which is all it may have; "
                f"first retire the older: eulerlora keys retire {self.client}"
            )
        keys = (*self.keys, ActiveKey(sha256=sha256, created=created))
        return self.model_copy(update={"keys": keys})


def read_clients(path: Path) -> tuple[Client, ...]:
    """The clients in a key file, in its order; an empty file has none.

    Raises SettingsError, one line that names the file and the line, for anything but clients with
    one or two keys each, of which no name and no key comes twice.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise SettingsError(f"{path}: not a readable key file ({reason})") from error
    clients: list[Client] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                client = _client(line)
                _check_new(seen, client)
            except (ValueError, SettingsError) as error:
                raise SettingsError(f"{path}: line {number}: {error}") from error
            clients.append(client)
    return tuple(clients)


def write_clients(path: Path, clients: Sequence[Client]) -> None:
    """Replaces the file in one step; its owner and mode stay, a new one is private.

    Raises StorageError for a full disk.
    """
    before = path.stat() if path.exists() else None
    with whole_file(path, private=True) as partial:
        partial.write_text("".join(_line(client) for client in clients), encoding="utf-8")
    path.chmod(PRIVATE if before is None else stat.S_IMODE(before.st_mode))
    if before is not None:
        with suppress(PermissionError):  # only root may give a file away
            os.chown(path, before.st_uid, before.st_gid)


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Within the block no other command changes a key file in the same folder."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def warn_if_world_readable(path: Path) -> None:
    """Logs a warning where every user of the machine may read the file."""
    if path.stat().st_mode & stat.S_IROTH:
        logger.warning("%s: every user of this machine may read it; chmod o-r", path)


def _client(line: str) -> Client:
    try:
        fields = json.loads(line, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("not JSON (nested too deep)") from error
    if not isinstance(fields, dict):
        raise ValueError("wanted a JSON object")
    return validated(Client, fields)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("the same field is there twice")
    return fields


def _check_new(seen: set[str], client: Client) -> None:
    """A name has no 64 hex digits and a colon, so that both kinds may share a set."""
    for what, value in [
        (f"the client {client.client}", f"client:{client.client}"),
        *((f"the key {key.sha256[:8]}…", key.sha256) for key in client.keys),
    ]:
        if value in seen:
            raise ValueError(f"{what} is there twice")
        seen.add(value)


def _line(client: Client) -> str:
    return json.dumps(client.model_dump(mode="json", exclude_none=True)) + "\n"
