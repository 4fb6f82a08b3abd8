"""Key files with known keys, as `eulerlora keys` writes them."""

import json
from hashlib import sha256
from pathlib import Path


def client(name: str, *keys: str, **limit: int) -> dict[str, object]:
    """The line of a client; `limit`: `requests_per_minute`."""
    created = "2026-11-21T00:00:00Z"
    active = [{"sha256": sha256(key.encode()).hexdigest(), "created": created} for key in keys]
    return {"client": name, "keys": active, **limit}


def write_keys(path: Path, *clients: dict[str, object]) -> Path:
    """Writes a private key file; returns its path."""
    path.touch(0o600)
    path.write_text("".join(f"{json.dumps(one)}\n" for one in clients))
    return path
