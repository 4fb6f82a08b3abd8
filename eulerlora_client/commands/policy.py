"""The commands `eulerlora policy show` and `eulerlora policy check`.

The training distribution adds `fit`; the group passes it `packaged_policy`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora_client.commands.program import Program, packaged_policy
from eulerlora_client.printable import printable

if TYPE_CHECKING:
    from eulerlora_client.policy.policy import Policy


@click.group("policy", cls=Program, entry_group="eulerlora.policy_commands")
@click.pass_context
def policy_command(context: click.Context) -> None:
    """Show, check and fit the triage policy."""
    context.obj = packaged_policy


@click.command("show")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--performance",
    "measured",
    is_flag=True,
    help="Print the measured sensitivity and specificity instead, as Markdown.",
)
def show_command(file: Path | None, measured: bool) -> None:
    """Print the packaged policy, which is the default, or a policy file."""
    from eulerlora_client.policy.performance import UNKNOWN, performance  # noqa: PLC0415
    from eulerlora_client.policy.policy import DEFAULT_FILE, parse_policy, read_text  # noqa: PLC0415

    text = packaged_policy() if file is None else read_text(file)
    if not measured:
        click.echo(text, nl=False)
        return
    shown = performance(parse_policy(text, DEFAULT_FILE if file is None else str(file)))
    click.echo(UNKNOWN if shown is None else shown.markdown)


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--images",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="File or folder of images; prints how many of them each quality limit rejects.",
)
def check_command(file: Path, images: tuple[Path, ...]) -> None:
    """Validate a policy file and print its version and hash."""
    from eulerlora_client.policy.policy import read_policy  # noqa: PLC0415 - fast --help

    policy = read_policy(file)
    click.echo(f"{printable(str(file))}: valid, version {policy.version}, {policy.hash}")
    if images:
        click.echo("\n".join(_rejected(policy, images)))


def _rejected(policy: Policy, images: Sequence[Path]) -> Iterator[str]:
    """Yields the number of images that the quality limits reject, in total and by reason."""
    from PIL import Image  # noqa: PLC0415 - fast --help

    from eulerlora_client.errors import ImageFilesError  # noqa: PLC0415
    from eulerlora_client.policy.quality import measure_quality  # noqa: PLC0415
    from eulerlora_client.triage.files import select_files  # noqa: PLC0415

    files = select_files(images).files
    reasons = []
    for path in files:
        try:
            with Image.open(path) as image:
                reasons.append(tuple(policy.quality_reasons(measure_quality(image))))
        except (OSError, ValueError, SyntaxError) as error:
            raise ImageFilesError(f"{path}: expected an image that can be decoded") from error
    rejected = sum(map(bool, reasons))
    yield f"{rejected:,} of {len(files):,} images rejected ({rejected / len(files):.2%})"
    for reason, count in Counter(chain.from_iterable(reasons)).most_common():
        yield f"{reason}: {count:,}"
