"""Bodies and headers of successful responses."""

import json
import math

import numpy as np
import pytest

from eulerlora_client.contract.answers import Nats, Probability, WireModel
from service.http.responses import json_response, rounded, server_timing
from service.telemetry.events import Timing


class Body(WireModel):
    probabilities: dict[str, Probability]
    rows: tuple[tuple[Probability, ...], ...] | None = None
    entropy: Nats | None = None
    seed: int = 0


def test_numbers_have_six_significant_digits_and_integers_all_of_theirs() -> None:
    body = Body(
        probabilities={"a": 0.123456789, "b": 1.23456789e-9},
        rows=((1 / 3, 2 / 3),),
        entropy=1234567.89,
        seed=4294967295,
    )
    response = json_response(body)
    assert json.loads(response.body) == {
        "probabilities": {"a": 0.123457, "b": 1.23457e-9},
        "rows": [[0.333333, 0.666667]],
        "entropy": 1234570.0,
        "seed": 4294967295,
    }


@pytest.mark.parametrize("classes", [2, 7, 1000])
def test_rounded_probabilities_sum_to_one_and_keep_the_highest(classes: int) -> None:
    generator = np.random.default_rng(classes)
    for concentration in (0.01, 1.0, 100.0):
        exact = generator.dirichlet(np.full(classes, concentration)).tolist()
        shown = rounded(exact)
        assert abs(math.fsum(shown) - 1) <= 1e-5
        assert max(shown) == rounded(max(exact))


def test_a_rounded_number_is_the_nearest_with_six_digits() -> None:
    generator = np.random.default_rng(0)
    exact = 10 ** generator.uniform(-12, 12, 500) * generator.choice([-1, 1], 500)
    places = 5 - np.floor(np.log10(np.abs(exact)))
    reference = [round(value, int(place)) for value, place in zip(exact, places, strict=True)]
    assert rounded(exact.tolist()) == pytest.approx(reference, rel=1e-15)


def test_fields_that_are_not_set_are_omitted_and_those_without_a_value_are_null() -> None:
    response = json_response(Body(probabilities={}, rows=None, entropy=math.inf))
    assert json.loads(response.body) == {"probabilities": {}, "rows": None, "entropy": None}


def test_server_timing_is_in_milliseconds() -> None:
    timings = [Timing(0.0125, 0, 2), Timing(0.001, 0.25, 1)]
    assert server_timing(timings[:1]) == "decode;dur=12.50, queue;dur=0.00, model;dur=2000.00"
    assert server_timing(timings) == "decode;dur=12.50, queue;dur=250.00, model;dur=2000.00"
