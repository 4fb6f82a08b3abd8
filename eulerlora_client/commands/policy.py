"""The commands `eulerlora policy show` and `check`; `fit` is training's, and begins with what the
group hands it.
"""

from pathlib import Path

import click

from eulerlora_client.commands.program import Program
from eulerlora_client.policy.policy import default_policy_text, read_policy


@click.group("policy", cls=Program, entry_group="eulerlora.policy_commands")
@click.pass_context
def policy_command(context: click.Context) -> None:
    """Show, check and fit the policy that says what to do next for a picture."""
    context.obj = default_policy_text()


@click.command("show")
def show_command() -> None:
    """Print the policy that is used where no other is named, to start one's own from."""
    click.echo(default_policy_text(), nl=False)


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check_command(file: Path) -> None:
    """Say whether a policy file is valid, with its version and its hash."""
    policy = read_policy(file)
    click.echo(f"{file}: valid, version {policy.version}, {policy.hash}")
