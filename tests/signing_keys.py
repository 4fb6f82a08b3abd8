"""Key pairs that sign checkpoints in tests."""

from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)


@dataclass(frozen=True)
class KeyFiles:
    """The PEM files of a key pair."""

    private: Path
    public: Path


def write_keys(
    folder: Path,
    name: str = "signing",
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    password: bytes | None = None,
) -> KeyFiles:
    """Writes a key pair, by default a new one on the curve P-256."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    files = KeyFiles(folder / f"{name}.key", folder / f"{name}.pub")
    files.private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    files.public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return files
