"""The secret of an audit log, and the keyed hashes of images derived from it."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from eulerlora.errors import SettingsError
from service.auth.key_file import warn_if_world_readable

VARIABLE = "EULERLORA_AUDIT_SECRET"
MIN_BYTES = 32


def read_secret(file: Path | None, environment: Mapping[str, str]) -> bytes:
    """Returns the secret from a file, or from EULERLORA_AUDIT_SECRET if no file is given.

    Strips trailing line ends. Raises SettingsError for an unreadable file, and for fewer than
    32 bytes.
    """
    if file is None:
        source, secret = VARIABLE, environment.get(VARIABLE, "").encode("utf-8", "surrogateescape")
    else:
        source = str(file)
        try:
            secret = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{file}: cannot read the secret ({error.strerror})") from error
        warn_if_world_readable(file)
    secret = secret.rstrip(b"\r\n")
    if len(secret) < MIN_BYTES:
        raise SettingsError(
            f"{source}: expected an audit secret of at least {MIN_BYTES} bytes, got "
            f"{len(secret)}; create one with: openssl rand -hex 32"
        )
    return secret


def secret_id(secret: bytes) -> str:
    """Returns 16 hex digits that identify a secret without revealing it."""
    return hmac.digest(secret, b"eulerlora audit log", hashlib.sha256).hex()[:16]


def image_hash(secret: bytes, content: bytes) -> str:
    """Returns the HMAC-SHA-256 of an image file as uploaded, in hex.

    Without the secret, nobody can check whether a given image is in the log.
    """
    return hmac.digest(secret, content, hashlib.sha256).hex()
