"""What happens in the service that is worth counting."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class BatchRun(Protocol):
    """One batch that an engine has run; `seconds` is how long it took."""

    @property
    def model(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def questions(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Timing(Protocol):
    """Where one prediction's time went, in seconds."""

    @property
    def decode_s(self) -> float: ...
    @property
    def queue_s(self) -> float: ...
    @property
    def model_s(self) -> float: ...


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
