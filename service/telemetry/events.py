"""What happens in the service that is worth counting."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRun:
    """A batch that ran: which model's, of how many rows and questions, and for how long."""

    model: str
    rows: int
    questions: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Seconds that an answer took: to decode its image, to wait, and to run its batch."""

    decode_s: float
    queue_s: float
    model_s: float


@dataclass(frozen=True)
class RequestOutcome:
    """One HTTP request that has ended.

    method: one of a known few. route: a template. problem: the code of the problem that it was
    answered with.
    """

    method: str
    route: str
    status: int
    problem: str | None
    duration_s: float
    body_bytes: int


@dataclass(frozen=True)
class Gauges:
    """What is asked at every scrape; called from the thread that serves it.

    revisions: the served models' names and revisions.
    """

    ready: Callable[[], bool]
    queue_rows: Callable[[], int]
    queue_questions: Callable[[], int]
    revisions: Callable[[], Mapping[str, str]]
