"""Clients that send load, responses in time, recovery, and memory of a process tree."""

import asyncio
import itertools
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from eulerlora_lab.benchmarks.service import overload
from eulerlora_lab.benchmarks.service.load import closed_loop, get, post
from eulerlora_lab.benchmarks.service.overload import in_time, poisson_load
from eulerlora_lab.benchmarks.service.plan import SMALL_SERVICE
from eulerlora_lab.benchmarks.service.server import growth, memory, sampled


def test_a_closed_loop_counts_responses_refusals_and_lost_requests(fake_server) -> None:
    turns = itertools.cycle([200, 503, 0])
    with fake_server(lambda *_: next(turns)) as port:
        load = closed_loop(port, [post(b"image")], 2, 10)
    statuses = [exchange.status for exchange in load.exchanges]
    assert len(load.successful) == 10
    assert {503, None} <= set(statuses)
    assert load.rate == pytest.approx(10 / load.seconds)


def test_a_closed_loop_ends_when_the_server_has_ended(fake_server) -> None:
    with fake_server(lambda *_: 200) as port:
        pass
    with pytest.raises(ConnectionError, match="100 exchanges"):
        closed_loop(port, [get("/")], 8, 1)


def test_a_request_arrives_as_rendered(fake_server) -> None:
    seen = []
    with fake_server(lambda path, body: seen.append((path, body)) or 200) as port:
        load = closed_loop(port, [post(b"image", parameters={"mode": "det"})], 1, 1)
    assert seen[0] == ("/predict?mode=det", b"image")
    assert load.exchanges[0].response.headers["server-timing"] == "decode;dur=1.50, model;dur=20"


def test_an_open_loop_without_a_server_has_no_responses(fake_server) -> None:
    with fake_server(lambda *_: 200) as port:
        pass
    sent = []
    exchanges = asyncio.run(poisson_load(port, [get("/")], 50, 0.2, 1, lambda: sent.append(True)))
    assert exchanges
    assert {exchange.status for exchange in exchanges} == {None}
    assert sent == [True]


def test_the_rate_of_an_open_loop_does_not_depend_on_the_responses(fake_server) -> None:
    with fake_server(lambda *_: 503) as port:
        exchanges = asyncio.run(poisson_load(port, [get("/")], 100, 1, 5, lambda: None))
    assert 60 < len(exchanges) < 140
    assert {exchange.status for exchange in exchanges} == {503}


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
    assert in_time(SimpleNamespace(status=status, seconds=seconds), 10, 0.1) is timely


def test_recovery_lasts_until_both_the_probe_and_a_prediction_succeed(
    fake_server, monkeypatch
) -> None:
    paths = []

    def respond(path, _body):
        if path.startswith("/predict?"):
            return 200  # of the load
        paths.append(path)
        return 503 if paths.count(path) < 3 else 200

    plan = SMALL_SERVICE.model_copy(update={"overload_s": 0.5, "refusal_s": 5.0})
    with fake_server(respond) as port:
        server = SimpleNamespace(port=port, pid=os.getpid())
        monkeypatch.setattr(overload, "eulerlora_server", lambda _: nullcontext(server))
        timely, _, recovered = overload.overload(plan)
    assert timely.value == 1
    ready, predicts = recovered.measured
    assert 0 < ready <= predicts == recovered.value
    assert paths == ["/readyz"] * 3 + ["/predict"] * 3


def test_growth_is_relative_to_the_end_of_the_warm_up() -> None:
    samples = [SimpleNamespace(at_s=at, rss=50 if at < 10 else 100 + at) for at in range(111)]
    assert growth(samples, 10) == pytest.approx((210 - 2.5) / (110 + 2.5) - 1)


def test_memory_covers_the_process_tree_and_is_sampled_at_both_ends_of_the_block() -> None:
    pid = os.getpid()
    with sampled(pid, 60) as samples:
        assert len(samples) == 1
    assert len(samples) == 2
    assert samples[0].at_s < samples[1].at_s
    assert 0 < memory(pid) <= samples[1].rss
