"""The commands `eulerlora policy show` and `check`, and `eulerlora monitor`.

Modules of the policy are imported when a command runs, so that `--help` is fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora_contract.printable import printable
from eulerlora_contract.program import INPUT_FILE, PATH, SHARE, Program

if TYPE_CHECKING:
    from eulerlora_clinic.monitoring import LoggedAnswer, Outcome, OutcomeSummary, Promise
    from eulerlora_clinic.policy.policy import Policy

_SHOWN_CLASSES = 10


@click.group("policy", cls=Program, entry_group="eulerlora.policy_commands")
def policy_command() -> None:
    """Show, check and fit the triage policy."""


@click.command(
    "show",
    epilog="\b\nExample:\n  eulerlora policy show > policy.toml",
)
@click.argument("file", required=False, type=PATH)
@click.option(
    "--performance",
    "measured",
    is_flag=True,
    help="Print the measured sensitivity and specificity instead, as Markdown.",
)
@click.option(
    "--card",
    is_flag=True,
    help="Print a section for the model card instead; see `eulerlora card --section`.",
)
def show_command(file: Path | None, measured: bool, card: bool) -> None:
    """Print the packaged policy, which is the default, or a policy file."""
    from eulerlora_clinic.policy.policy import (  # noqa: PLC0415
        DEFAULT_FILE,
        default_policy_text,
        parse_policy,
        read_policy_text,
    )
    from eulerlora_clinic.policy.results import card_section, performance_text  # noqa: PLC0415

    text = default_policy_text() if file is None else read_policy_text(file)
    if not (measured or card):
        click.echo(text, nl=False)
        return
    policy = parse_policy(text, DEFAULT_FILE if file is None else str(file))
    click.echo(card_section(policy) if card else performance_text(policy))


@click.command(
    "check",
    epilog="\b\nExample:\n  eulerlora policy check policy.toml --images pictures/",
)
@click.argument("file", type=PATH)
@click.option(
    "--images",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="File or folder of images; prints how many of them each quality limit rejects.",
)
def check_command(file: Path, images: tuple[Path, ...]) -> None:
    """Validate a policy file and print its version and hash."""
    from eulerlora_clinic.policy.policy import read_policy  # noqa: PLC0415 - fast --help

    policy = read_policy(file)
    click.echo(f"{printable(str(file))}: valid, version {policy.version}, {policy.hash}")
    if images:
        click.echo("\n".join(_rejected(policy, images)))


def _rejected(policy: Policy, images: Sequence[Path]) -> Iterator[str]:
    """Yields the number of images that the quality limits reject, in total and by reason.

    Images that cannot be read are counted apart.

    Raises:
        ImageFilesError: If none can be read.
    """
    from eulerlora_client.images import image_bytes  # noqa: PLC0415 - fast --help
    from eulerlora_contract.errors import ImageError, ImageFilesError  # noqa: PLC0415
    from eulerlora_contract.image_folders import select_files  # noqa: PLC0415
    from eulerlora_contract.images import rgb_image  # noqa: PLC0415
    from eulerlora_contract.problems import UnreadableFile  # noqa: PLC0415
    from eulerlora_contract.quality import measure_quality  # noqa: PLC0415

    reasons, unreadable = [], []
    for path in select_files(images).files:
        try:
            quality = measure_quality(rgb_image(image_bytes(path)))
        except (UnreadableFile, ImageError) as error:
            unreadable.append(f"{path}: {error}")
        else:
            reasons.append(tuple(policy.quality_reasons(quality)))
    if not reasons:
        raise ImageFilesError(unreadable[0])
    rejected = sum(map(bool, reasons))
    yield f"{rejected:,} of {len(reasons):,} images rejected ({rejected / len(reasons):.2%})"
    for reason, count in Counter(chain.from_iterable(reasons)).most_common():
        yield f"{reason}: {count:,}"
    if unreadable:
        yield printable(f"not read: {len(unreadable):,}, such as {unreadable[0]}")


@click.command(
    "monitor",
    epilog="\b\nExamples:\n"
    "  eulerlora monitor confirmed.csv --policy policy.toml\n"
    "  eulerlora monitor audit-2026-11.jsonl audit.jsonl --policy policy.toml",
)
@click.argument("outcomes", metavar="OUTCOMES...", nargs=-1, required=True, type=INPUT_FILE)
@click.option(
    "--policy", "policy_file", type=INPUT_FILE, help="Policy file; default: the packaged policy."
)
@click.option(
    "--confirmed",
    default="confirmed",
    show_default=True,
    help="Column with the class that was confirmed.",
)
@click.option(
    "--target",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Class whose lesions count; default: the policy's critical classes.",
)
@click.option(
    "--wanted", type=SHARE, help="Share not to be missed; default: that of the policy's evidence."
)
@click.option(
    "--confidence", type=SHARE, default=0.95, show_default=True, help="Of the test and each bound."
)
def monitor_command(
    outcomes: tuple[Path, ...],
    policy_file: Path | None,
    confirmed: str,
    classes: tuple[str, ...],
    wanted: float | None,
    confidence: float,
) -> None:
    """Test whether more lesions are missed than the policy's evidence allows.

    OUTCOMES is the CSV file of `eulerlora triage --csv`, in order of time, with the column
    `confirmed` and optionally `lesion`; or the files of a service's audit log, with the diagnoses
    of `eulerlora decide`. A lesion is missed if one of its dispositions is not urgent, unfamiliar,
    or referred by the target probability; images that were sent as one lesion have one disposition,
    that of the most urgent. The test may be repeated whenever the files grow. The exit
    status is 1 after an alarm; without a lesion to test it is 0.
    """
    from eulerlora_clinic.monitoring import outcome_summary  # noqa: PLC0415
    from eulerlora_clinic.policy.policy import default_policy, read_policy  # noqa: PLC0415

    policy = default_policy() if policy_file is None else read_policy(policy_file)
    promise = _promise_of(policy, classes, wanted, confidence)
    rows = _outcomes(outcomes, confirmed, policy.hash)
    summary = outcome_summary(rows, promise)
    for line in _report_lines(summary, promise):
        click.echo(line)
    click.echo(f"policy: version {policy.version}, {policy.hash}")
    if summary.alarm_at is not None:
        raise click.ClickException(
            f"ALARM at {summary.unit} {summary.alarm_at}: more {summary.unit}s confirmed as "
            f"{promise.title} are missed than the tolerated share of {promise.tolerated:.3g}"
        )


def _outcomes(paths: Sequence[Path], confirmed: str, policy_hash: str) -> Sequence[Outcome]:
    """The rows of a CSV file, or those of audit logs, about which it prints lines.

    Raises:
        OutcomesError: As `read_outcomes` and `read_logs`, and for decisions of another policy.
    """
    from eulerlora_clinic.monitoring import (  # noqa: PLC0415
        check_decided_by,
        is_audit_log,
        read_logs,
        read_outcomes,
    )

    are_logs = [is_audit_log(path) for path in paths]
    if not all(are_logs):
        if len(paths) > 1:
            raise click.UsageError("expected one CSV file, or audit logs only")
        rows: Sequence[Outcome] = read_outcomes(paths[0], confirmed)
        check_decided_by(paths[0], rows, policy_hash)
        return rows
    answers = read_logs(paths)
    decided = [answer for answer in answers if answer.outcome.policy_hash == policy_hash]
    if not decided:
        check_decided_by(paths[0], [answer.outcome for answer in answers], policy_hash)
    for line in _decision_lines(decided, len(answers)):
        click.echo(line)
    return [answer.outcome for answer in decided]


def _decision_lines(answers: Sequence[LoggedAnswer], logged: int) -> Iterator[str]:
    """Yields how people decided, and the shares that drift, in both halves of the answers."""
    yield f"answers of triage: {logged}, of this policy: {len(answers)}"
    middle = len(answers) // 2
    decided, overridden, unfamiliar = [], [], []
    for part in (answers, answers[:middle], answers[middle:]):
        states = [answer.decided for answer in part]
        decided.append(sum(state.decision is not None for state in states))
        overridden.append(sum(state.is_override for state in states))
        unfamiliar.append(sum(state.disposition == "unfamiliar" for state in states))
    yield (
        f"decided by a person: {decided[0]}, overridden: {overridden[0]} "
        f"({overridden[0] / max(decided[0], 1):.4f}); in the first half {overridden[1]} of "
        f"{decided[1]}, in the second {overridden[2]} of {decided[2]}"
    )
    yield (
        f"disposition unfamiliar: {unfamiliar[0]}; in the first half {unfamiliar[1]} of {middle}, "
        f"in the second {unfamiliar[2]} of {len(answers) - middle}"
    )


def _promise_of(
    policy: Policy, classes: tuple[str, ...], wanted: float | None, confidence: float
) -> Promise:
    """What is tested.

    Raises:
        UsageError: If neither option nor evidence says `wanted`.
    """
    from eulerlora_clinic.monitoring import Promise  # noqa: PLC0415 - fast --help

    if wanted is None and policy.evidence:
        wanted = policy.evidence[0].fit.routine.wanted
    if wanted is None:
        raise click.UsageError("the policy has no evidence: expected --wanted")
    if not 0 < wanted < 1:
        raise click.UsageError(f"expected a wanted share between 0 and 1, got {wanted:g}")
    critical = policy.target.critical
    if classes:
        return Promise(classes, 1 - wanted, confidence)
    return Promise(critical.classes, 1 - wanted, confidence, critical.name)


def _report_lines(summary: OutcomeSummary, promise: Promise) -> list[str]:
    from eulerlora_clinic.monitoring import LesionOutcome  # noqa: PLC0415 - fast --help

    counts = summary.counts
    known = summary.others - summary.unknown
    others = {
        f"{summary.unit}s confirmed as other classes, which do not count": known,
        "note: diagnoses that are no classes of the model, which do not count without --target": (
            summary.unknown
        ),
    }
    if summary.alarm_at is not None:
        verdict = f"ALARM: more than {promise.tolerated:.3g} are missed"
    elif not summary.assessed:
        verdict = "no alarm: there is nothing to test yet"
    elif summary.upper <= promise.tolerated:
        verdict = f"no alarm: at most {promise.tolerated:.3g} is established"
    else:
        verdict = f"no alarm: more than {promise.tolerated:.3g} is neither shown nor excluded"
    return [
        f"{summary.unit}s confirmed as {promise.title}: {counts.total()}"
        + (" (the file names no lesions: every picture counts)" * (summary.unit == "picture")),
        f"  urgent: {counts[LesionOutcome.URGENT]}",
        f"  unfamiliar, seen by a person: {counts[LesionOutcome.UNFAMILIAR]}",
        f"  referred by the target: {counts[LesionOutcome.REFERRED]}",
        f"  missed: {counts[LesionOutcome.MISSED]}",
        f"  not assessed (retake or no decision): {counts[LesionOutcome.NOT_ASSESSED]}",
        f"miss rate: {_share(counts[LesionOutcome.MISSED], summary.assessed)}, at least "
        f"{summary.lower:.4f} and at most {summary.upper:.4f}, each with a confidence of "
        f"{promise.confidence:g} at all times",
        f"verdict: {verdict}",
        *(f"{title}: {_listed(counted)}" for title, counted in others.items() if counted),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "unknown"


def _listed(counts: Counter[str]) -> str:
    """The total and the most frequent classes; they are a user's text."""
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(_SHOWN_CLASSES))
    more = len(counts) - _SHOWN_CLASSES
    return printable(f"{counts.total()} ({shown}{f', and {more} more' if more > 0 else ''})")
