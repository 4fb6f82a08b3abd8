"""Keys that clients show, and the clients they belong to.

A key is 256 random bits of our own making, and what is stored is its plain SHA-256. Slow, salted
hashes make the guessing of passwords dear, of which people choose few; nobody guesses one of
2**256 equally likely keys however fast the hash is (NIST SP 800-63B-3, 5.1.2.2, draws
the line at 112 bits), and a slow one would be work that strangers can ask for.
"""

import hashlib
import hmac
import logging
import secrets
import time
from pathlib import Path

from eulerlora.errors import SettingsError
from service.auth.key_file import Client, read_clients, warn_if_world_readable

PREFIX = "elk_"
KEY_BYTES = 32
RECHECK_S = 1.0

logger = logging.getLogger(__name__)


def new_key() -> str:
    """A random key of 256 bits, to be shown once."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def key_hash(key: bytes) -> bytes:
    """What is stored and compared; of any bytes at all."""
    return hashlib.sha256(key).digest()


class Keys:
    """The clients of a key file, which is read again when it changes.

    recheck_s: the file is looked at no more often than this. Raises SettingsError where the file
    cannot be used at the start; later, a broken file leaves the clients as they were, and is
    logged once.
    """

    def __init__(self, path: Path, recheck_s: float = RECHECK_S) -> None:
        self.path = path
        self._recheck_s = recheck_s
        self._looked = time.monotonic()
        self._seen = _fingerprint(path)
        self._known = _known(path)

    def client_of(self, key: bytes) -> Client | None:
        """Whose key this is. Takes the same time for every key: each hash is compared, whole."""
        if time.monotonic() - self._looked >= self._recheck_s:
            self.reread()
        shown = key_hash(key)
        found = None
        for stored, client in self._known:
            if hmac.compare_digest(shown, stored):
                found = client
        return found

    def reread(self) -> None:
        """Takes the file as it is now, if it changed."""
        self._looked = time.monotonic()
        fingerprint = _fingerprint(self.path)  # before reading: a change meanwhile is seen next
        if fingerprint == self._seen:
            return
        self._seen = fingerprint
        try:
            self._known = _known(self.path)
        except (SettingsError, OSError) as error:
            logger.error("%s; the keys that were read before stay in force", error)
        else:
            logger.info("%s: read again, %d active keys", self.path, len(self._known))


def _known(path: Path) -> tuple[tuple[bytes, Client], ...]:
    clients = read_clients(path)
    if not clients:
        logger.warning("%s: has no clients; nobody may ask", path)
    warn_if_world_readable(path)
    return tuple((bytes.fromhex(key.sha256), client) for client in clients for key in client.keys)


def _fingerprint(path: Path) -> tuple[int, ...] | None:
    """What changes when the file does; None where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
