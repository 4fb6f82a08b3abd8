"""Clients with known keys, for tests."""

from datetime import UTC, datetime

from service.auth.keys import ActiveKey, Client, key_hash

CREATED = datetime(2026, 11, 21, tzinfo=UTC)


def client(name: str, *keys: str) -> Client:
    active = [ActiveKey(sha256=key_hash(key.encode()).hex(), created=CREATED) for key in keys]
    return Client(client=name, keys=tuple(active))
