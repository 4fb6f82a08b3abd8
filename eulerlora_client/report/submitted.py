"""The report of answers that were submitted as JSON.

Run as a program, it reads a `ReportJob` and the JSON from standard input and writes the report to
standard output, with limited resources: the content is untrusted.
"""

import io
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from eulerlora_client.report.exports import write_triage_rows
from eulerlora_client.report.html import report_html, sent_thumbnail
from eulerlora_client.report.ranking import RowProblem, TriageRow
from eulerlora_contract.policy.policy import Policy
from eulerlora_contract.problems import MalformedBody
from eulerlora_contract.queries import ReportFormat, ReportImage, ReportProblem, ReportRequest
from eulerlora_contract.settings import Settings, error_without_input

_NICENESS = 10
_MEMORY_BYTES = 2 * 1024**3
MAX_CHARACTERS = 64 * 1024**2
_MAX_CLASSES = 1000
_TOO_LARGE = "the report is too large; expected fewer images or classes"
INVALID_REQUEST = 3
"""The exit status for a request that is no report; its reason is on standard error."""


class ReportJob(Settings):
    """A line of JSON before the request; the CPU time is that of the process, in whole seconds."""

    format: ReportFormat
    policy: Policy
    cpu_s: int


def submitted_report(job: ReportJob, content: bytes, created_at: datetime) -> str:
    """The report of a `ReportRequest` in JSON. Raises MalformedBody."""
    try:
        request = ReportRequest.model_validate_json(content)
    except ValidationError as error:
        reason = error_without_input(error, ReportRequest, ReportImage, ReportProblem)
        raise MalformedBody(reason) from error
    rows = [_row(image) for image in request.images]
    classes = {name for row in rows if row.result for name in row.result.prediction.probabilities}
    if len(classes) > _MAX_CLASSES:  # each is a column of the CSV
        raise MalformedBody(_TOO_LARGE)
    if job.format == "csv":
        text = io.StringIO(newline="")
        write_triage_rows(text, rows)
        return text.getvalue()
    parts = report_html(
        rows, job.policy, created_at, lambda row: sent_thumbnail(row.thumbnail or "")
    )
    return "".join(_limited(parts))


def _limited(parts: Iterable[str]) -> Iterator[str]:
    characters = 0
    for part in parts:
        characters += len(part)
        if characters > MAX_CHARACTERS:
            raise MalformedBody(_TOO_LARGE)
        yield part


def _row(image: ReportImage) -> TriageRow:
    problem = None
    if image.problem is not None:
        texts = (image.problem.title, image.problem.detail)
        detail = ": ".join(text for text in texts if text) or image.problem.code
        problem = RowProblem(image.problem.code, detail)
    return TriageRow(
        Path(image.file), image.result, problem, thumbnail=image.thumbnail, lesion=image.lesion
    )


def main() -> None:
    """Writes one report, from standard input to standard output."""
    job = ReportJob.model_validate_json(sys.stdin.buffer.readline())
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (job.cpu_s, job.cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        report = submitted_report(job, sys.stdin.buffer.read(), datetime.now(UTC))
    except MalformedBody as problem:
        sys.stderr.write(problem.detail)
        sys.exit(INVALID_REQUEST)
    sys.stdout.buffer.write(report.encode("utf-8", "backslashreplace"))


if __name__ == "__main__":
    main()
