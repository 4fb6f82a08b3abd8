"""API keys: generation, hashing, and the lookup of a key's client.

A key consists of 256 random bits, and only its plain SHA-256 hash is stored. Slow, salted hashes
make brute force expensive for passwords, which have little entropy. They are not needed for random
keys of at least 112 bits (NIST SP 800-63B-3, 5.1.2.2), and would let an unauthenticated sender
consume CPU time.
"""

import hashlib
import hmac
import logging
import secrets
import time
from pathlib import Path

from eulerlora.errors import SettingsError
from service.auth.key_file import (
    Client,
    parse_clients,
    read_content,
    warn_if_world_readable,
)

PREFIX = "elk_"
KEY_BYTES = 32
CHECK_INTERVAL_S = 1.0

logger = logging.getLogger(__name__)


def new_key() -> str:
    """Returns a random key of 256 bits."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_hash(key: bytes) -> bytes:
    """Returns the SHA-256 hash of a key, the form in which keys are stored and compared."""
    return hashlib.sha256(key).digest()


class Keys:
    """Looks up clients by key; applies changes of the key file.

    A change is found by content: an edit can keep size, inode and modification time.
    check_interval_s: minimum time between two reads of the file. Raises SettingsError if the
    file is invalid at construction. If a later version is invalid, the previous clients stay
    valid, and the error is logged once per version.
    """

    def __init__(self, path: Path, check_interval_s: float = CHECK_INTERVAL_S) -> None:
        self.path = path
        self._check_interval_s = check_interval_s
        self._checked_at = time.monotonic()
        self._content: bytes | None = read_content(path)
        self._clients = _clients_by_hash(path, self._content)

    def client_of(self, key: bytes) -> Client | None:
        """Returns the client of a key, or None. Compares every stored hash in constant time."""
        if time.monotonic() - self._checked_at >= self._check_interval_s:
            self.reload_if_changed()
        sent = key_hash(key)
        owner = None
        for stored, client in self._clients:
            if hmac.compare_digest(sent, stored):
                owner = client
        return owner

    def reload_if_changed(self) -> None:
        """Reads the file again and applies its content if it has changed since the last time."""
        self._checked_at = time.monotonic()
        before, self._content = self._content, None
        try:
            self._content = read_content(self.path)
            if self._content == before:
                return
            self._clients = _clients_by_hash(self.path, self._content)
        except (SettingsError, OSError) as error:
            if self._content is not None or before is not None:
                logger.error("%s; the previous keys stay valid", error)
        else:
            logger.info("%s: reloaded, %d active keys", self.path, len(self._clients))


def _clients_by_hash(path: Path, content: bytes) -> tuple[tuple[bytes, Client], ...]:
    clients = parse_clients(path, content)
    if not clients:
        logger.warning("%s: contains no clients; every request will be refused", path)
    warn_if_world_readable(path)
    return tuple((bytes.fromhex(key.sha256), client) for client in clients for key in client.keys)
