import itertools

import pytest

from benchmarks.service.load.closed_loop import closed_loop
from benchmarks.service.load.open_loop import poisson_load
from benchmarks.service.load.request import get, post


def test_a_closed_loop_counts_answers_and_keeps_the_refused_and_the_lost_apart(standing) -> None:
    turns = itertools.cycle([200, 503, 0])
    with standing(lambda *_: next(turns)) as port:
        load = closed_loop(port, [post(b"image")], 2, 10)
    statuses = [each.status for each in load.outcomes]
    assert len(load.answered) == 10
    assert {503, None} <= set(statuses)
    assert load.rate == pytest.approx(10 / load.seconds)


def test_a_request_arrives_as_it_was_rendered(standing) -> None:
    seen = []
    with standing(lambda path, body: seen.append((path, body)) or 200) as port:
        load = closed_loop(port, [post(b"image", parameters={"mode": "det"})], 1, 1)
    assert seen[0] == ("/predict?mode=det", b"image")
    answer = load.outcomes[0].answer
    assert answer.server_seconds() == {"decode": 0.0015, "model": 0.02}


def test_a_server_that_is_not_there_answers_nobody_in_an_open_loop(standing) -> None:
    with standing(lambda *_: 200) as port:
        pass
    sent = []
    outcomes = poisson_load(port, [get("/")], 50, 0.2, 1, lambda: sent.append(True))
    assert outcomes
    assert {each.status for each in outcomes} == {None}
    assert sent == [True]


def test_an_open_loop_sends_at_about_its_rate_whatever_the_answers(standing) -> None:
    with standing(lambda *_: 503) as port:
        outcomes = poisson_load(port, [get("/")], 100, 1, 5, lambda: None)
    assert 60 < len(outcomes) < 140
    assert {each.status for each in outcomes} == {503}
