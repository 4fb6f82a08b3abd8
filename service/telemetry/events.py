"""Events that logs, metrics and traces report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from eulerlora_client.contract.answers import Disposition, ModelShift, Prediction

ClientClass = Literal["anonymous", "keyed"]
"""The class of a client in the metrics, which do not contain names."""

CLIENT_CLOSED_REQUEST = 499  # the status that nginx logs for a disconnected client


@dataclass(frozen=True)
class BatchRun:
    """A completed batch: a model, its rows and items, and the run time of the whole batch."""

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
class CompletedPrediction:
    """A prediction, and its disposition if a triage policy was applied.

    at_ns: completion time in nanoseconds since 1970.
    """

    prediction: Prediction
    timing: Timing
    disposition: Disposition | None
    at_ns: int


@dataclass(frozen=True)
class CompletedRequest:
    """A completed HTTP request.

    method: a known method or `other`. route: a path template. problem: the code of the problem in
    the response, if any. body_bytes: received bytes of the body. client: whether the request had a
    valid key.
    """

    method: str
    route: str
    status: int
    problem: str | None
    duration_s: float
    body_bytes: int
    client: ClientClass = "anonymous"


@dataclass(frozen=True)
class Gauges:
    """Functions that return current values; called at every scrape.

    revisions, precisions: of the served models by name. shift: the states of their shift
    monitors; a model without thresholds has none.
    """

    ready: Callable[[], bool]
    queue_rows: Callable[[], int]
    queue_items: Callable[[], int]
    revisions: Callable[[], Mapping[str, str]]
    precisions: Callable[[], Mapping[str, str]]
    shift: Callable[[], Mapping[str, ModelShift]]
