"""What is recorded of requests and predictions, for metrics, logs and traces."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from eulerlora_contract.answers import Prediction

CLIENT_CLOSED_REQUEST = 499  # the status that nginx logs for a disconnected client
OTHER = "other"
ShadowResult = Literal["same", "different", "less_urgent", "more_urgent"]
"""Of the shadow's answer, compared with the served one."""


@dataclass(frozen=True)
class CompletedPrediction:
    """An answer to an image.

    Attributes:
        prediction: None for an answer with features.
        model_s: Seconds of its batch.
        at_ns: Completion time in nanoseconds since 1970.
    """

    model: str
    prediction: Prediction | None
    decode_s: float
    queue_s: float
    model_s: float
    at_ns: int = field(default_factory=time.time_ns)

    @property
    def stages_s(self) -> Mapping[str, float]:
        """Seconds by the name of the stage, in order."""
        return {"decode": self.decode_s, "queue": self.queue_s, "model": self.model_s}


@dataclass
class RequestObservation:
    """What is recorded of an HTTP request; complete once its response has ended.

    Attributes:
        method: A known method or `other`.
        route: A path template or `other`.
        status: None before the response.
        problem: The code of the problem in the response, if any.
        key_name: The name of its API key, None without one.
        image_problems: The codes of the problems of single images in a batch.
    """

    method: str
    route: str = OTHER
    status: int | None = None
    problem: str | None = None
    key_name: str | None = None
    duration_s: float = 0.0
    body_bytes: int = 0
    predictions: list[CompletedPrediction] = field(default_factory=list)
    image_problems: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> Mapping[str, str | int]:
        """Of the predictions, which have the same ones; empty without any."""
        if not self.predictions:
            return {}
        first = self.predictions[0]
        options = () if first.prediction is None else ("mode", "samples", "views")
        return {"model": first.model} | {name: getattr(first.prediction, name) for name in options}
