"""Events that logs, metrics and traces report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from eulerlora_client.contract.models import ModelShift

CLIENT_CLOSED_REQUEST = 499  # the status that nginx logs for a disconnected client


@dataclass(frozen=True)
class BatchRun:
    """A completed batch: model, rows, items, and run time."""

    model: str
    rows: int
    items: int
    seconds: float


@dataclass(frozen=True)
class Timing:
    """Seconds of the stages of a prediction: decoding, queue, and its batch."""

    decode_s: float
    queue_s: float
    model_s: float


@dataclass(frozen=True)
class CompletedRequest:
    """A completed HTTP request.

    method: a known method or `other`. route: a path template. problem: the code of the problem in
    the response, if any. body_bytes: received bytes of the body.
    """

    method: str
    route: str
    status: int
    problem: str | None
    duration_s: float
    body_bytes: int


@dataclass(frozen=True)
class Gauges:
    """Functions that return current values; called at every scrape.

    revisions: the revisions of the served models by name. shift: the states of their shift
    monitors; a model without thresholds has none.
    """

    ready: Callable[[], bool]
    queue_rows: Callable[[], int]
    queue_items: Callable[[], int]
    revisions: Callable[[], Mapping[str, str]]
    shift: Callable[[], Mapping[str, ModelShift]]
