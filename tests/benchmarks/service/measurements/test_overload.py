"""Timely responses and recovery under overload."""

import pytest

from benchmarks.service.load.closed_loop import Exchange
from benchmarks.service.load.connection import Response
from benchmarks.service.measurements.overload import in_time
from benchmarks.service.server.recovery import recovery_seconds


@pytest.mark.parametrize(
    ("status", "seconds", "timely"),
    [
        (200, 9.9, True),
        (200, 10.1, False),
        (503, 0.09, True),
        (503, 0.11, False),
        (504, 0.01, False),
        (None, 0.01, False),
    ],
)
def test_a_response_by_the_deadline_or_an_immediate_refusal_is_in_time(
    status, seconds, timely
) -> None:
    response = None if status is None else Response(status, {}, b"")
    assert in_time(Exchange(0, seconds, response), 10, 0.1) is timely


def test_recovery_lasts_until_both_the_probe_and_a_prediction_succeed(fake_server) -> None:
    paths = []

    def respond(path, _body):
        paths.append(path)
        return 503 if paths.count(path) < 3 else 200

    with fake_server(respond) as port:
        ready, predicts = recovery_seconds(port, b"image", probe_s=5)
    assert 0 < ready <= predicts
    assert paths == ["/readyz"] * 3 + ["/predict"] * 3
