"""Open-loop load: requests leave when it is their time, whether or not others were answered.

The times are MLCommons LoadGen's, scenario "Server" (Poisson arrivals). Its own latencies are not
used: to it a refusal is an answer like any other.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import mlperf_loadgen as loadgen

from benchmarks.service.load.closed_loop import Outcome
from benchmarks.service.load.connection import Answer, Connection, NoAnswer

Issue = Callable[[Sequence[loadgen.QuerySample]], None]
IDLE_S = 2.0  # uvicorn closes after 5 s; a request must not meet that moment


def poisson_load(
    port: int,
    requests: Sequence[bytes],
    rate: float,
    seconds: float,
    give_up_s: float,
    last_sent: Callable[[], object],
) -> list[Outcome]:
    """What came of requests at `rate` a second, chosen at random, once all have ended.

    give_up_s: after which a client no longer waits. last_sent: called when no more will be sent.
    """
    outcomes: list[Outcome] = []
    loop = asyncio.new_event_loop()
    lines = _Lines(port)

    async def one(query: int, index: int, asked: float) -> None:
        answer = None
        with suppress(NoAnswer, TimeoutError):
            answer = await asyncio.wait_for(lines.ask(requests[index]), give_up_s)
        outcomes.append(Outcome(asked, time.monotonic() - asked, answer))
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query, 0, 0)])

    def issue(samples: Sequence[loadgen.QuerySample]) -> None:
        asked = time.monotonic()
        for sample in samples:
            asyncio.run_coroutine_threadsafe(one(sample.id, sample.index, asked), loop)

    thread = threading.Thread(target=loop.run_forever, name="clients")
    thread.start()
    try:
        _start_test(issue, last_sent, len(requests), rate, seconds)
    finally:
        loop.call_soon_threadsafe(lines.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return outcomes


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
        library = loadgen.ConstructQSL(requests, requests, _nothing, _nothing)
        try:
            loadgen.StartTestWithLogSettings(system, library, settings, log)
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)


def _nothing(*_: object) -> None:
    """For LoadGen's calls to load samples: they are in memory."""


class _Lines:
    """Connections that are free are used again, the last one first."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Connection] = []

    async def ask(self, request: bytes) -> Answer:
        connection = self._fresh() or await Connection.to(self._port)
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.usable:
            self._free.append(connection)
        else:
            connection.close()
        return answer

    def _fresh(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._free:
            connection = self._free.pop()
            if connection.usable and now - connection.idle_since < IDLE_S:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        while self._free:
            self._free.pop().close()
