"""The command `eulerlora policy queue`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora_client.printable import printable

if TYPE_CHECKING:
    from eulerlora_client.policy.policy import Policy
    from eulerlora_client.triage.queue import Picture, QueuedPicture

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("queue")
@click.argument("lesions", nargs=-1, required=True, type=FILE)
@click.option("--everyday", multiple=True, type=FILE, help="Rows of pictures that show no lesion.")
@click.option(
    "--melanoma",
    multiple=True,
    metavar="PATTERN",
    help="Paths of the pictures of melanoma, such as '*/mel/*'.",
)
@click.option(
    "--policy", "policy_file", type=FILE, help="Policy file; default: the packaged policy."
)
def queue_command(
    lesions: tuple[Path, ...],
    everyday: tuple[Path, ...],
    melanoma: tuple[str, ...],
    policy_file: Path | None,
) -> None:
    """Show what a policy makes of triaged pictures, with and without the flag `unfamiliar`.

    LESIONS and --everyday are files of `eulerlora triage --json-lines`, one for each set. The
    policy decides again on every row; for "before", it ignores the flag of the feature distance.
    """
    from eulerlora_client.policy.policy import default_policy, read_policy  # noqa: PLC0415

    policy = default_policy() if policy_file is None else read_policy(policy_file)
    pictures = [*_pictures(lesions, melanoma, False), *_pictures(everyday, (), True)]
    click.echo("\n".join(_lines(pictures, policy)))


def _pictures(files: Sequence[Path], melanoma: Sequence[str], everyday: bool) -> Iterator[Picture]:
    from eulerlora_client.report.exports import read_json_lines  # noqa: PLC0415 - fast --help
    from eulerlora_client.triage.queue import Picture  # noqa: PLC0415

    for file in files:
        for row in read_json_lines(file):
            is_melanoma = any(fnmatch(row.path.as_posix(), pattern) for pattern in melanoma)
            yield Picture(row, file.stem, is_melanoma, everyday)


def _lines(pictures: Sequence[Picture], policy: Policy) -> Iterator[str]:
    from eulerlora_client.triage.queue import first_everyday, queue_of  # noqa: PLC0415

    before = queue_of(pictures, policy, heed_unfamiliar=False)
    after = queue_of(pictures, policy, heed_unfamiliar=True)
    yield f"Policy version {policy.version}, {policy.hash}."
    yield "\nPictures by disposition, in per cent:"
    yield _table(before, after, lambda count, total: f"{100 * count / total:.1f}")
    if any(picture.melanoma for picture in pictures):
        yield "\nPictures of melanoma; a person looks at those that are unfamiliar:"
        yield _table(_melanomas(before), _melanomas(after), lambda count, _: str(count))
    places = first_everyday(before), first_everyday(after)
    if None not in places:
        yield (
            f"\nThe first everyday picture is number {places[0]:,} of {len(before):,} before, and "
            f"number {places[1]:,} after."
        )


def _melanomas(queue: Sequence[QueuedPicture]) -> Sequence[QueuedPicture]:
    return [each for each in queue if each.picture.melanoma]


def _table(
    before: Sequence[QueuedPicture],
    after: Sequence[QueuedPicture],
    cell: Callable[[int, int], str],
) -> str:
    """Returns two rows for each set, as a table in Markdown. cell: text for (count, total)."""
    from tabulate import tabulate  # noqa: PLC0415 - fast --help

    from eulerlora_client.policy.urgency import BY_URGENCY  # noqa: PLC0415
    from eulerlora_client.triage.queue import status_counts  # noqa: PLC0415

    statuses = BY_URGENCY[::-1]
    rows = []
    for source in dict.fromkeys(each.picture.source for each in after):
        for name, queue in (("before", before), ("after", after)):
            counts = status_counts(queue, source)
            total = counts.total()
            cells = (cell(counts[status], total) for status in statuses)
            rows.append([printable(source), name, f"{total:,}", *cells])
    align = ["left", "left", *["right"] * (1 + len(statuses))]
    header = ["set", "", "pictures", *statuses]
    return tabulate(rows, header, tablefmt="github", colalign=align, disable_numparse=True)
