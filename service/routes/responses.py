"""Bodies and headers of successful responses."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response
from pydantic import BaseModel
from pydantic_core import to_json

from service.telemetry.metrics import Timing

SIGNIFICANT_DIGITS = 6
"""Of the numbers in a response. The relative error is at most 5e-6, and so is the deviation of a
sum of probabilities from 1, for any number of classes."""


def json_response(
    body: BaseModel | Mapping[str, Any],
    timings: Sequence[Timing] = (),
    media_type: str = "application/json",
) -> Response:
    """Returns the response with a body, and a Server-Timing header if there are predictions.

    Omits fields that are not set, and rounds numbers to SIGNIFICANT_DIGITS.
    """
    values = body.model_dump(exclude_unset=True) if isinstance(body, BaseModel) else body
    content = to_json(rounded(values), inf_nan_mode="null")
    headers = {"Server-Timing": server_timing(timings)} if timings else {}
    return Response(content, headers=headers, media_type=media_type)


def rounded(value: Any) -> Any:
    """Returns a JSON value with its floating-point numbers rounded; integers are exact."""
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return value


def server_timing(timings: Sequence[Timing]) -> str:
    """Returns a Server-Timing header; of several predictions, the maximum of every stage."""
    longest = {
        "decode": max(timing.decode_s for timing in timings),
        "queue": max(timing.queue_s for timing in timings),
        "model": max(timing.model_s for timing in timings),
    }
    return ", ".join(f"{name};dur={1000 * value:.2f}" for name, value in longest.items())
