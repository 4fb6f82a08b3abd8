"""The commands `eulerlora policy show` and `eulerlora policy check`.

The training distribution adds `fit`; the group passes it the text of the packaged policy.
"""

from pathlib import Path

import click

from eulerlora_client.commands.program import Program


@click.group("policy", cls=Program, entry_group="eulerlora.policy_commands")
@click.pass_context
def policy_command(context: click.Context) -> None:
    """Show, check and fit the triage policy."""
    from eulerlora_client.policy.policy import default_policy_text  # noqa: PLC0415 - fast --help

    context.obj = default_policy_text()


@click.command("show")
def show_command() -> None:
    """Print the packaged policy, which is the default."""
    from eulerlora_client.policy.policy import default_policy_text  # noqa: PLC0415 - fast --help

    click.echo(default_policy_text(), nl=False)


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check_command(file: Path) -> None:
    """Validate a policy file and print its version and hash."""
    from eulerlora_client.policy.policy import read_policy  # noqa: PLC0415 - fast --help

    policy = read_policy(file)
    click.echo(f"{file}: valid, version {policy.version}, {policy.hash}")
