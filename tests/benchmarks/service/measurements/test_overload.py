import pytest

from benchmarks.service.load.closed_loop import Outcome
from benchmarks.service.load.connection import Answer
from benchmarks.service.measurements.overload import in_time
from benchmarks.service.server.recovery import seconds_until_it_answers


@pytest.mark.parametrize(
    ("status", "seconds", "good"),
    [
        (200, 9.9, True),
        (200, 10.1, False),
        (503, 0.09, True),
        (503, 0.11, False),
        (504, 0.01, False),
        (None, 0.01, False),
    ],
)
def test_answered_by_the_deadline_or_refused_at_once_is_in_time(status, seconds, good) -> None:
    answer = None if status is None else Answer(status, {}, b"")
    assert in_time(Outcome(0, seconds, answer), 10, 0.1) is good


def test_recovery_lasts_until_both_the_probe_and_a_prediction_succeed(standing) -> None:
    asked = []

    def respond(path, _body):
        asked.append(path)
        return 503 if asked.count(path) < 3 else 200

    with standing(respond) as port:
        ready, answers = seconds_until_it_answers(port, b"image", probe_s=5)
    assert 0 < ready <= answers
    assert asked == ["/readyz"] * 3 + ["/predict"] * 3
