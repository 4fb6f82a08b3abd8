"""Who is told of predictions: metrics, an audit log."""

from dataclasses import dataclass
from typing import Protocol

from service.schemas import PredictionBody


@dataclass(frozen=True)
class Timing:
    """Seconds that an answer took: to decode its image, to wait, and to run its batch."""

    decode_s: float
    queue_s: float
    model_s: float


class Observer(Protocol):
    """Who is told of every prediction before it is sent; a Problem it raises is sent instead."""

    def answered(self, body: PredictionBody, timing: Timing) -> None: ...
