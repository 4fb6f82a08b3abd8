"""The commands `eulerlora keys new`, `eulerlora keys retire` and `eulerlora keys list`."""

import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora_contract.processes import protect_memory
from eulerlora_contract.program import PATH

if TYPE_CHECKING:  # imported at run time only by the commands that need it
    from service.auth.keys import ActiveKey

_HASH_DIGITS = 8

_file_option = click.option("--file", "path", required=True, type=PATH, help="The key file.")


@click.group("keys")
def keys_command() -> None:
    """Create, retire and list the API keys of the service's clients."""
    with suppress(OSError):
        protect_memory()  # a new key


@keys_command.command(
    "new",
    epilog="\b\nExample:\n  eulerlora keys new clinic --file keys.jsonl",
)
@click.argument("name")
@_file_option
@click.option(
    "--requests-per-minute",
    type=click.IntRange(min=1),
    help="Rate limit of the client; replaces an earlier limit.",
)
def _new_command(name: str, path: Path, requests_per_minute: int | None) -> None:
    """Create a key for a client, print it once and store its hash.

    A client can have two keys. Retire the older one as soon as the newer one is in use.
    """
    from eulerlora_contract.errors import SettingsError  # noqa: PLC0415
    from eulerlora_contract.settings import validated  # noqa: PLC0415
    from service.auth.keys import (  # noqa: PLC0415
        MAX_KEYS,
        Client,
        key_hash,
        new_key,
        updated_clients,
    )

    key, now = new_key(), datetime.now(UTC).replace(microsecond=0)
    stored = {"sha256": key_hash(key.encode()).hex(), "created": now}
    with updated_clients(path) as clients:
        client = validated(Client, {"client": name, "keys": [stored]})
        if name in clients:
            known = clients[name]
            if len(known.keys) == MAX_KEYS:
                raise SettingsError(
                    f"{name} already has the maximum of {MAX_KEYS} active keys; retire one first: "
                    f"eulerlora keys retire {name} --file {shlex.quote(str(path))}"
                )
            client = known.model_copy(update={"keys": (*known.keys, *client.keys)})
        if requests_per_minute is not None:
            client = client.model_copy(update={"requests_per_minute": requests_per_minute})
        clients[name] = client
    click.echo(key)
    click.echo(
        f"active keys of {name} in {path}: {len(client.keys)}; this one is not shown again",
        err=True,
    )


@keys_command.command(
    "retire",
    epilog="\b\nExample:\n  eulerlora keys retire clinic --file keys.jsonl",
)
@click.argument("name")
@_file_option
@click.option("--newer", is_flag=True, help="Of two keys, retire the newer one.")
def _retire_command(name: str, path: Path, newer: bool) -> None:
    """Retire the older key of a client; remove the client with its last key."""
    from eulerlora_contract.errors import SettingsError  # noqa: PLC0415
    from service.auth.keys import updated_clients  # noqa: PLC0415

    with updated_clients(path) as clients:
        if name not in clients:
            raise SettingsError(f"{path}: contains no client {name}")
        client = clients[name]
        if newer and len(client.keys) == 1:
            raise SettingsError(f"{path}: expected two keys of {name} with --newer, got one")
        keys = sorted(client.keys, key=lambda key: key.created)
        retired = keys.pop(-1 if newer else 0)
        remaining = tuple(keys)
        if remaining:
            clients[name] = client.model_copy(update={"keys": remaining})
        else:
            del clients[name]
    click.echo(f"retired {_describe(retired)}")
    if not remaining:
        click.echo(f"{name} has no keys left and is no longer a client")


@keys_command.command(
    "list",
    epilog="\b\nExample:\n  eulerlora keys list --file keys.jsonl",
)
@_file_option
def _list_command(path: Path) -> None:
    """List clients with the first digits of their key hashes, and creation times."""
    from service.auth.keys import read_clients  # noqa: PLC0415

    for client in read_clients(path):
        limit = client.requests_per_minute
        click.echo(f"{client.client}  {'no limit' if limit is None else f'{limit} a minute'}")
        for key in client.keys:
            click.echo(f"  {_describe(key)}")


def _describe(key: "ActiveKey") -> str:
    created = key.created.astimezone(UTC)
    return f"{key.sha256[:_HASH_DIGITS]}, created {created:%Y-%m-%d %H:%M} UTC"
