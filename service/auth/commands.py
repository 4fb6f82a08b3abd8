"""The commands `eulerlora keys new`, `eulerlora keys retire` and `eulerlora keys list`."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # imported at run time only by the commands that need it
    from service.auth.keys import ActiveKey, Client

HASH_DIGITS = 8

file_option = click.option(
    "--file", "path", required=True, type=click.Path(path_type=Path), help="The key file."
)


@click.group("keys")
def keys_command() -> None:
    """Create, retire and list the API keys of the service's clients."""


@keys_command.command(
    "new",
    epilog="\b\nExample:\n  eulerlora keys new clinic --file keys.json",
)
@click.argument("name")
@file_option
@click.option(
    "--requests-per-minute",
    type=click.IntRange(min=1),
    help="Rate limit of the client; replaces an earlier limit.",
)
def new_command(name: str, path: Path, requests_per_minute: int | None) -> None:
    """Create a key for a client, print it once and store its hash.

    A client can have two keys. Retire the older one as soon as the newer one is in use.
    """
    from eulerlora_client.settings import validated  # noqa: PLC0415
    from service.auth.keys import (  # noqa: PLC0415
        Client,
        key_hash,
        new_key,
    )

    key = new_key()
    digest, now = key_hash(key.encode()).hex(), datetime.now(UTC).replace(microsecond=0)

    def add_key(before: Client | None) -> Client:
        if before is None:
            first = {"sha256": digest, "created": now}
            client = validated(Client, {"client": name, "keys": [first]})
        else:
            client = before.with_key(digest, now)
        limit = {} if requests_per_minute is None else {"requests_per_minute": requests_per_minute}
        return client.model_copy(update=limit)

    client = _update(path, name, add_key)
    click.echo(key)
    click.echo(
        f"{name} has {len(client.keys) if client else 0} active keys in {path}; "
        "this key is not shown again",
        err=True,
    )


@keys_command.command(
    "retire",
    epilog="\b\nExample:\n  eulerlora keys retire clinic --file keys.json",
)
@click.argument("name")
@file_option
def retire_command(name: str, path: Path) -> None:
    """Retire the older key of a client; remove the client with its last key."""
    from eulerlora.errors import SettingsError  # noqa: PLC0415

    retired: list[ActiveKey] = []

    def drop_key(before: "Client | None") -> "Client | None":
        if before is None:
            raise SettingsError(f"{path}: contains no client {name}")
        retired.append(min(before.keys, key=lambda key: key.created))
        remaining = tuple(key for key in before.keys if key not in retired)
        return before.model_copy(update={"keys": remaining}) if remaining else None

    client = _update(path, name, drop_key)
    click.echo(f"retired {_describe(retired[0])}")
    if client is None:
        click.echo(f"{name} has no keys left and is no longer a client")


@keys_command.command(
    "list",
    epilog="\b\nExample:\n  eulerlora keys list --file keys.json",
)
@file_option
def list_command(path: Path) -> None:
    """List clients with the first digits of their key hashes, and creation times."""
    from service.auth.keys import read_clients  # noqa: PLC0415

    for client in read_clients(path):
        limit = client.requests_per_minute
        click.echo(f"{client.client}  {'no limit' if limit is None else f'{limit} a minute'}")
        for key in client.keys:
            click.echo(f"  {_describe(key)}")


def _describe(key: "ActiveKey") -> str:
    created = key.created.astimezone(UTC)
    return f"{key.sha256[:HASH_DIGITS]}, created {created:%Y-%m-%d %H:%M} UTC"


def _update(
    path: Path, name: str, change: "Callable[[Client | None], Client | None]"
) -> "Client | None":
    """Replaces one client with the result of `change`; None as result removes the client."""
    from service.auth.keys import (  # noqa: PLC0415
        locked_for_update,
        read_clients,
        write_clients,
    )

    with locked_for_update(path):
        clients = {
            client.client: client for client in (read_clients(path) if path.exists() else ())
        }
        changed = change(clients.get(name))
        if changed is None:
            del clients[name]
        else:
            clients[name] = changed
        write_clients(path, tuple(clients.values()))
    return changed
