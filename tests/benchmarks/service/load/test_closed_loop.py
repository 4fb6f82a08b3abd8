"""Closed-loop and open-loop load."""

import itertools

import pytest

from benchmarks.service.load.closed_loop import closed_loop
from benchmarks.service.load.open_loop import poisson_load
from benchmarks.service.load.request import get, post


def test_a_closed_loop_counts_responses_refusals_and_lost_requests(fake_server) -> None:
    turns = itertools.cycle([200, 503, 0])
    with fake_server(lambda *_: next(turns)) as port:
        load = closed_loop(port, [post(b"image")], 2, 10)
    statuses = [exchange.status for exchange in load.exchanges]
    assert len(load.successful) == 10
    assert {503, None} <= set(statuses)
    assert load.rate == pytest.approx(10 / load.seconds)


def test_a_request_arrives_as_rendered(fake_server) -> None:
    seen = []
    with fake_server(lambda path, body: seen.append((path, body)) or 200) as port:
        load = closed_loop(port, [post(b"image", parameters={"mode": "det"})], 1, 1)
    assert seen[0] == ("/predict?mode=det", b"image")
    response = load.exchanges[0].response
    assert response.server_seconds() == {"decode": 0.0015, "model": 0.02}


def test_an_open_loop_without_a_server_has_no_responses(fake_server) -> None:
    with fake_server(lambda *_: 200) as port:
        pass
    sent = []
    exchanges = poisson_load(port, [get("/")], 50, 0.2, 1, lambda: sent.append(True))
    assert exchanges
    assert {exchange.status for exchange in exchanges} == {None}
    assert sent == [True]


def test_the_rate_of_an_open_loop_does_not_depend_on_the_responses(fake_server) -> None:
    with fake_server(lambda *_: 503) as port:
        exchanges = poisson_load(port, [get("/")], 100, 1, 5, lambda: None)
    assert 60 < len(exchanges) < 140
    assert {exchange.status for exchange in exchanges} == {503}
