"""The commands `eulerlora keys new`, `retire` and `list`."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click

from eulerlora.errors import SettingsError
from eulerlora.settings import validated
from service.auth.key_file import ActiveKey, Client, changing, read_clients, write_clients
from service.auth.keys import key_hash, new_key

SHOWN_DIGITS = 8

file_option = click.option(
    "--file", "path", required=True, type=click.Path(path_type=Path), help="The file of keys."
)


@click.group("keys")
def keys_command() -> None:
    """Make, retire and list the keys that clients show to the service."""


@keys_command.command("new")
@click.argument("name")
@file_option
@click.option(
    "--requests-per-minute", type=click.IntRange(min=1), help="Also replaces an earlier limit."
)
def new_command(name: str, path: Path, requests_per_minute: int | None) -> None:
    """Make a key for a client, print it once and store its hash.

    A client may have two keys, the older of which is retired when the newer is in use.
    """
    key = new_key()
    digest, now = key_hash(key.encode()).hex(), datetime.now(UTC).replace(microsecond=0)

    def add(before: Client | None) -> Client:
        if before is None:
            first = {"sha256": digest, "created": now}
            client = validated(Client, {"client": name, "keys": [first]})
        else:
            client = before.with_key(digest, now)
        limit = {} if requests_per_minute is None else {"requests_per_minute": requests_per_minute}
        return client.model_copy(update=limit)

    client = _change(path, name, add)
    click.echo(key)
    click.echo(
        f"{name} has {len(client.keys) if client else 0} active keys in {path}; "
        "this one is shown only now",
        err=True,
    )


@keys_command.command("retire")
@click.argument("name")
@file_option
def retire_command(name: str, path: Path) -> None:
    """Retire a client's key, the older where there are two; with its last the client goes."""

    retired: list[ActiveKey] = []

    def drop(before: Client | None) -> Client | None:
        if before is None:
            raise SettingsError(f"{path}: has no client {name}")
        retired.append(min(before.keys, key=lambda key: key.created))
        left = tuple(key for key in before.keys if key not in retired)
        return before.model_copy(update={"keys": left}) if left else None

    client = _change(path, name, drop)
    click.echo(f"retired {_shown(retired[0])}")
    if client is None:
        click.echo(f"{name} has no key left and is no longer a client")


@keys_command.command("list")
@file_option
def list_command(path: Path) -> None:
    """Clients with the first digits of their keys' hashes, and when the keys were made."""
    for client in read_clients(path):
        limit = client.requests_per_minute
        click.echo(f"{client.client}  {'no limit' if limit is None else f'{limit} a minute'}")
        for key in client.keys:
            click.echo(f"  {_shown(key)}")


def _shown(key: ActiveKey) -> str:
    made = key.created.astimezone(UTC)
    return f"{key.sha256[:SHOWN_DIGITS]}, made {made:%Y-%m-%d %H:%M} UTC"


def _change(
    path: Path, name: str, change: Callable[[Client | None], Client | None]
) -> Client | None:
    """Replaces one client by what `change` makes of it; the others stay as they are."""
    with changing(path):
        clients = {each.client: each for each in (read_clients(path) if path.exists() else ())}
        changed = change(clients.get(name))
        if changed is None:
            del clients[name]
        else:
            clients[name] = changed
        write_clients(path, tuple(clients.values()))
    return changed
