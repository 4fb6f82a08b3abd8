"""The commands `eulerlora triage` and `decide`; they import their work when they run."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from eulerlora_contract.printable import printable
from eulerlora_contract.program import INPUT_FILE, PATH, SHARE, SamplesParameter
from eulerlora_contract.sampling import MODES, Auto, Mode

if TYPE_CHECKING:
    from eulerlora_client.client import DecisionOptions, PredictOptions
    from eulerlora_contract.queries import Decided

_KEY_VARIABLE = "EULERLORA_KEY"

_OUTPUT_FILE = click.Path(path_type=Path, dir_okay=False)
_URL = click.option(
    "--url", default="http://127.0.0.1:8000", show_default=True, help="Address of the service."
)
_KEY_FILE = click.option(
    "--key-file", type=INPUT_FILE, help=f"File with the API key; default: ${_KEY_VARIABLE}."
)


@click.command(
    "triage",
    epilog="\b\nExample:\n  eulerlora triage pictures/ --report report.html --csv rows.csv",
)
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@_URL
@click.option("--report", type=_OUTPUT_FILE, help="Write a self-contained HTML report.")
@click.option(
    "--language",
    metavar="CODE",
    default="en",
    show_default=True,
    help="Language of table and report, such as de or fr.",
)
@click.option("--csv", type=_OUTPUT_FILE, help="Write a CSV file.")
@click.option(
    "--strip-metadata",
    is_flag=True,
    help="Remove EXIF, GPS, XMP and comments of JPEG, PNG and WebP before they are sent; other "
    "files are not sent.",
)
@click.option(
    "--lesions",
    type=PATH,
    metavar="FILE|folders",
    help="Images of one lesion get one disposition, that of the most urgent: a CSV file with the "
    "columns file, relative to it, and lesion; or the word folders, for a folder per lesion.",
)
@_KEY_FILE
@click.option(
    "--policy",
    "policy_file",
    type=INPUT_FILE,
    help="Policy file that decides; default: the policy of the service.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    help="Default: the mode that the policy's thresholds were set for.",
)
@click.option(
    "--samples",
    type=SamplesParameter(),
    help="Samples per adapter, with stoch; auto: as many as the decisions need. Default: the "
    "number that the policy's thresholds were set for.",
)
@click.option("--model", help="Name of a served model; default: the first one.")
@click.option(
    "--coverage",
    type=SHARE,
    help="Add a prediction set with this coverage, such as 0.9, to the output files.",
)
@click.option("--json-lines", type=_OUTPUT_FILE, help="Write a JSON object per line.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Concurrent requests.",
)
def triage_command(
    images: tuple[Path, ...],
    url: str,
    key_file: Path | None,
    policy_file: Path | None,
    mode: Mode | None,
    samples: int | Auto | None,
    model: str | None,
    coverage: float | None,
    strip_metadata: bool,
    csv: Path | None,
    json_lines: Path | None,
    report: Path | None,
    language: str,
    concurrency: int,
    lesions: Path | None,
) -> None:
    """Rank lesion images by urgency with a running service, with reasons for each.

    Takes files, and all images below folders, DICOM included; a file that the service does not
    read gets a row that says so. The exit status is 1 if a file has no decision. For demonstration
    and research only; not a medical device.
    """
    if mode not in (None, "stoch") and samples is not None:
        raise click.UsageError(f"expected --samples only with --mode stoch, got --mode {mode}")
    from eulerlora_clinic.commands.session import Session, run_session  # noqa: PLC0415
    from eulerlora_clinic.language import languages  # noqa: PLC0415
    from eulerlora_clinic.policy.policy import read_policy  # noqa: PLC0415
    from eulerlora_clinic.report.exports import Outputs  # noqa: PLC0415

    if language not in languages():
        codes = ", ".join(languages())
        raise click.UsageError(f"expected --language to be one of {codes}, got {language}")
    outputs = Outputs(csv, json_lines, report, languages()[language])
    key = _key(key_file)
    policy = read_policy(policy_file) if policy_file else None
    options: PredictOptions = {
        "mode": mode, "samples": samples, "model": model, "coverage": coverage,
        "detail": any((policy_file, report, json_lines)),  # what reads trajectories
    }  # fmt: skip
    session = Session(url, key, policy, options, concurrency, strip_metadata)
    settings_files = [path for path in (key_file, policy_file, lesions) if path is not None]
    run_session(session, images, outputs, settings_files, lesions)


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_KEY_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file}: expected an API key as text") from error


@click.command(
    "decide",
    epilog="\b\nExamples:\n"
    "  eulerlora decide REQUEST-ID urgent\n"
    '  eulerlora decide REQUEST-ID routine --reason "unchanged for years"\n'
    "  eulerlora decide REQUEST-ID undo\n"
    "  eulerlora decide REQUEST-ID --diagnosis mel",
)
@click.argument("request_id")
@click.argument("decision", required=False, metavar="[DISPOSITION|undo]")
@click.option("--reason", help="Why; required for another disposition than the suggested one.")
@click.option("--diagnosis", help="The confirmed one: the name of a class, or a code of your own.")
@click.option("--index", type=click.IntRange(0), help="Position of the image in its batch, from 0.")
@_URL
@_KEY_FILE
def decide_command(
    request_id: str,
    decision: str | None,
    reason: str | None,
    diagnosis: str | None,
    index: int | None,
    url: str,
    key_file: Path | None,
) -> None:
    """Record what a person decided about an answer of triage, or its diagnosis.

    REQUEST-ID is that of the answer. The suggested disposition accepts it, another one overrides
    it, and undo withdraws what was recorded. For a service with an audit log. Reasons are for
    people: they must not name a patient.
    """
    from eulerlora_client.client import TriageClient  # noqa: PLC0415
    from eulerlora_contract.errors import SettingsError  # noqa: PLC0415

    options: DecisionOptions = {
        "decision": cast("Decided | None", decision), "reason": reason, "diagnosis": diagnosis,
        "index": index,
    }  # fmt: skip
    try:
        client = TriageClient(url, _key(key_file))
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    with client:
        decided = client.decide(request_id, **options)
    parts = [f"suggested {decided.disposition}", f"decided {decided.decision or 'nothing yet'}"]
    parts += [f"reason: {decided.reason}"] if decided.reason else []
    parts += [f"diagnosis {decided.diagnosis}"] if decided.diagnosis else []
    click.echo(printable(f"{decided.item_id or decided.request_id}: {', '.join(parts)}"))
