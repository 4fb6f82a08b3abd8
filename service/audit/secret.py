"""The secret of an audit log, and what is made with it: keyed hashes of images."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from eulerlora.errors import SettingsError
from service.auth.key_file import warn_if_world_readable

VARIABLE = "EULERLORA_AUDIT_SECRET"
MIN_BYTES = 32


def read_secret(file: Path | None, environment: Mapping[str, str]) -> bytes:
    """The secret in a file, or in EULERLORA_AUDIT_SECRET where no file is given.

    Line ends after it do not belong to it. Raises SettingsError for none, and for one of less
    than 32 bytes.
    """
    if file is None:
        where, secret = VARIABLE, environment.get(VARIABLE, "").encode("utf-8", "surrogateescape")
    else:
        where = str(file)
        try:
            secret = file.read_bytes()
        except OSError as error:
            raise SettingsError(f"{file}: the secret cannot be read ({error.strerror})") from error
        warn_if_world_readable(file)
    secret = secret.rstrip(b"\r\n")
    if len(secret) < MIN_BYTES:
        raise SettingsError(
            f"{where}: wanted a secret of {MIN_BYTES} bytes or more for the audit log, "
            f"found {len(secret)}; openssl rand -hex 32 makes one"
        )
    return secret


def secret_id(secret: bytes) -> str:
    """What tells secrets apart without telling them: 16 hex digits."""
    return hmac.digest(secret, b"eulerlora audit log", hashlib.sha256).hex()[:16]


def image_hash(secret: bytes, content: bytes) -> str:
    """HMAC-SHA-256 of an image file's bytes as they were uploaded, in hex.

    Without the secret nobody can tell whether a picture at hand is in the log.
    """
    return hmac.digest(secret, content, hashlib.sha256).hex()
