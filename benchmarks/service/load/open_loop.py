"""Open-loop load: requests are sent at scheduled times, independent of earlier responses.

MLCommons LoadGen schedules them (scenario "Server", Poisson arrivals). Its latencies are not used,
because it counts a refusal as a response.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import mlperf_loadgen as loadgen

from benchmarks.service.load.closed_loop import Exchange
from benchmarks.service.load.connection import Connection, NoResponseError, Response

Issue = Callable[[Sequence[loadgen.QuerySample]], None]
MAX_IDLE_S = 2.0  # below the 5 s after which uvicorn closes an idle connection


def poisson_load(
    port: int,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    timeout_s: float,
    last_sent: Callable[[], object],
) -> list[Exchange]:
    """Sends random requests at `rate` per second for `seconds`; returns all exchanges.

    timeout_s: of a client. last_sent: called after the last request was sent.
    """
    exchanges: list[Exchange] = []
    loop = asyncio.new_event_loop()
    pool = _ConnectionPool(port)

    async def send(query: int, index: int, sent_s: float) -> None:
        response = None
        with suppress(NoResponseError, TimeoutError):
            response = await asyncio.wait_for(pool.exchange(requests[index]), timeout_s)
        exchanges.append(Exchange(sent_s, time.monotonic() - sent_s, response))
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query, 0, 0)])

    def issue(samples: Sequence[loadgen.QuerySample]) -> None:
        sent_s = time.monotonic()
        for sample in samples:
            asyncio.run_coroutine_threadsafe(send(sample.id, sample.index, sent_s), loop)

    thread = threading.Thread(target=loop.run_forever, name="clients")
    thread.start()
    try:
        _start_test(issue, last_sent, len(requests), rate, seconds)
    finally:
        loop.call_soon_threadsafe(pool.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return exchanges


def _start_test(
    issue: Issue, last_sent: Callable[[], object], requests: int, rate: float, seconds: float
) -> None:
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate
    settings.min_duration_ms = round(1000 * seconds)
    settings.min_query_count = 1
    settings.schedule_rng_seed = settings.sample_index_rng_seed = 1
    with tempfile.TemporaryDirectory() as folder:
        log = loadgen.LogSettings()
        output = loadgen.LogOutputSettings()
        output.outdir = folder
        log.log_output = output
        log.enable_trace = False
        system = loadgen.ConstructSUT(issue, last_sent)
        library = loadgen.ConstructQSL(requests, requests, _no_op, _no_op)
        try:
            loadgen.StartTestWithLogSettings(system, library, settings, log)
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)


def _no_op(*_: object) -> None:
    """LoadGen's callback to load samples, which are in memory."""


class _ConnectionPool:
    """Reuses idle connections, most recently used first."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def exchange(self, request: bytes) -> Response:
        connection = self._reusable() or await Connection.to(self._port)
        try:
            response = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def _reusable(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
