"""Response times of a client while another one overloads the service, and without that.

The attackers' requests cost a server more than they cost their sender.
"""

import asyncio
import itertools
import multiprocessing
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from io import BytesIO
from statistics import mean, median

import numpy as np
from PIL import Image

from eulerlora_lab.benchmarks.results import Result, Side, at_most, comparison
from eulerlora_lab.benchmarks.service.images import QUALITY, synthetic_images
from eulerlora_lab.benchmarks.service.load import (
    RETRY_S,
    ClientSession,
    Exchange,
    as_client,
    closed_loop,
    get,
    percentile,
    post,
    post_form,
)
from eulerlora_lab.benchmarks.service.plan import ServicePlan
from eulerlora_lab.benchmarks.service.server import eulerlora_server, status

_VICTIM = "10.0.0.1"
_MAX_RATIO = 2.0
BATCH, _LARGE_BATCH = 32, 20
_SCANS = 300
_ANNOUNCED = (
    b"POST /predict/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 134217728\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
)
_HALF_OPEN, _HALF_OPEN_ADDRESS = 520, "127.0.0.2"
_HALF = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
_PHOTOGRAPH = (1400, 1050)  # about 0.4 MB
_PHONE_PHOTOGRAPH = (4000, 3000)  # 12 megapixels
_LARGEST = (6000, 4000)  # the limit of 24 megapixels
_DISTINCT = 4
START_OF_SCAN = b"\xff\xda"
END_OF_IMAGE = b"\xff\xd9"
_BUSY_ADDRESS, _BUSY_SAMPLES = "127.0.0.3", 8
_PROBE_INTERVAL_S, _PROBE_TIMEOUT_S = 0.5, 5.0
_PROBE_BOUND_S = 1.0  # the default timeout of a probe of Kubernetes
_DRIP_S = 2.0  # below the time after which the service ends an upload that stalls

_numbers = itertools.count(1)

_Attack = Callable[[int], AbstractContextManager[None]]


def attackers(plan: ServicePlan) -> Iterator[Result]:
    """Compares the median and the 99th percentile of a client, and counts its refusals."""
    requests = [as_client(post(image), _VICTIM) for image in plan.images()]
    with eulerlora_server(plan.options) as server:

        def victim() -> list[Exchange]:
            return closed_loop(server.port, requests, 1, plan.victim_requests).exchanges

        victim()
        for name, attack in _attacks_by_name().items():
            alone, attacked = [], []
            for _ in range(plan.attack_runs):
                alone.append(victim())
                with attack(server.port):
                    attacked.append(victim())
            yield from _results(name, alone, attacked)


def _attacks_by_name() -> Mapping[str, _Attack]:
    """Each attack runs while its context is open."""
    photographs = synthetic_images(_DISTINCT, size=_PHOTOGRAPH)
    webp = batch([_large_webp()], _LARGE_BATCH)
    scans = post(_jpeg_of_many_scans(_SCANS))
    return {
        f"a batch of {BATCH} photographs": _clients(batch(photographs, BATCH), 1),
        f"4 batches of {_LARGE_BATCH} lossless WebP of 24 megapixels": _clients(webp, 4),
        f"4 clients with JPEGs of {_SCANS} scans": _clients(scans, 4),
        "4 uploads that announce 128 MB": partial(
            _dripping_uploads, head=as_client(_ANNOUNCED, _attacker()), count=4
        ),
        "16 clients with photographs of 12 megapixels": _clients(post(_phone_photograph()), 16),
        "64 clients that read /metrics": _clients(get("/metrics"), 64),
        "64 clients that read the largest file of /docs": _clients(
            get("/docs/swagger-ui-bundle.js"), 64
        ),
        f"{_HALF_OPEN} half-open connections": partial(
            _dripping_uploads, head=_HALF, count=_HALF_OPEN, address=_HALF_OPEN_ADDRESS
        ),
    }


def _clients(request: bytes, count: int) -> _Attack:
    return partial(_background_clients, requests=[as_client(request, _attacker())], clients=count)


def busy_connections(plan: ServicePlan) -> Iterator[Result]:
    """Probes and a client while another one has connections that retry a refusal at once.

    Every request of the attacker needs a large part of the queue, so that most are refused.
    """
    image = plan.images()[0]
    large = post(image, parameters={"mode": "stoch", "samples": _BUSY_SAMPLES})
    with eulerlora_server(plan.options) as server:
        for count in plan.busy_connections:
            probes: list[float] = []
            with (
                _in_process(_retrying_connections, server.port, large, count),
                _in_thread(partial(_probe, server.port, probes)),
            ):
                time.sleep(plan.busy_s / 10)  # all have connected
                exchanges = asyncio.run(_paced_victim(server.port, post(image), plan.busy_s))
            name = f"{count} connections of a client that retry at once"
            yield Result(
                name=f"{name}: /livez",
                ours=f"the slowest of new connections; {_PROBE_TIMEOUT_S:g} s: no response",
                value=max(probes),
                measured=probes,
                target=at_most(_PROBE_BOUND_S),
            )
            seconds = [exchange.seconds for exchange in exchanges]
            yield Result(
                name=f"{name}: another client",
                ours="median of new connections",
                value=median(seconds),
                measured=seconds,
                target=at_most(_PROBE_BOUND_S),
            )
            unanswered = [float(exchange.status != 200) for exchange in exchanges]
            yield Result(
                name=f"{name}: requests of another client without an answer",
                ours="status other than 200",
                value=mean(unanswered),
                measured=unanswered,
                unit="share",
                target=at_most(0.0),
            )


def _retrying_connections(port: int, request: bytes, count: int) -> None:
    """Sends a request on every connection again and again, until the process is terminated."""

    async def retry() -> None:
        session = ClientSession(port, _BUSY_ADDRESS)
        while True:
            await session.send(request)

    async def load() -> None:
        await asyncio.gather(*(retry() for _ in range(count)))

    asyncio.run(load())


def _probe(port: int, seconds: list[float], ended: threading.Event) -> None:
    """Times a /livez every _PROBE_INTERVAL_S."""
    while not ended.wait(_PROBE_INTERVAL_S):
        started = time.monotonic()
        answered = status(port, "/livez", _PROBE_TIMEOUT_S) == 200
        seconds.append(time.monotonic() - started if answered else _PROBE_TIMEOUT_S)


async def _paced_victim(port: int, request: bytes, duration_s: float) -> list[Exchange]:
    """Sends a request on a new connection after every response, for `duration_s`."""
    exchanges: list[Exchange] = []
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        session = ClientSession(port)
        exchanges.append(await session.send(request))
        session.close()
        await asyncio.sleep(_PROBE_INTERVAL_S)
    return exchanges


def _attacker() -> str:
    """A new address: the quota of an attack must not limit the next one."""
    return f"10.0.1.{next(_numbers)}"


def _results(
    name: str, alone: list[list[Exchange]], attacked: list[list[Exchange]]
) -> Iterator[Result]:
    for percent, target in ((50, None), (99, at_most(_MAX_RATIO))):
        meanwhile, before = (
            [percentile(exchanges, percent) for exchanges in runs] for runs in (attacked, alone)
        )
        yield comparison(
            f"{name}: p{percent} of another client / without them",
            Side("one request after another, meanwhile", meanwhile),
            Side("the same, alone", before),
            target,
        )
    refused = [mean(exchange.status != 200 for exchange in exchanges) for exchanges in attacked]
    yield Result(
        name=f"{name}: requests of another client without an answer",
        ours="status other than 200",
        value=mean(refused),
        measured=refused,
        unit="share",
        target=at_most(0.0),
    )


def batch(images: Sequence[bytes], count: int) -> bytes:
    contents = itertools.islice(itertools.cycle(images), count)
    files = [
        ("files", (f"{index}.jpg", content, "image/jpeg")) for index, content in enumerate(contents)
    ]
    return post_form(files, path="/predict/batch")


def _phone_photograph() -> bytes:
    with Image.open(BytesIO(synthetic_images(1)[0])) as image:
        return _encoded(image.resize(_PHONE_PHOTOGRAPH), "JPEG", quality=QUALITY)


def _large_webp() -> bytes:
    """A lossless WebP of 24 megapixels and few bytes, but not too few for its size."""
    random = np.random.default_rng(0)
    stripes = random.integers(0, 256, (_LARGEST[1], 1, 3), dtype=np.uint8)
    return _encoded(Image.fromarray(stripes).resize(_LARGEST), "WEBP", lossless=True, method=0)


def _jpeg_of_many_scans(scans: int) -> bytes:
    """A progressive JPEG of 4 megapixels in which the last scan is repeated."""
    image = Image.new("RGB", (2048, 2048), "gray")
    data = _encoded(image, "JPEG", quality=QUALITY, progressive=True)
    last = [match.start() for match in re.finditer(START_OF_SCAN, data)][-1]
    scan = data[last : data.rindex(END_OF_IMAGE)]
    return data[:last] + scan * scans + END_OF_IMAGE


def _encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


@contextmanager
def _background_clients(port: int, requests: Sequence[bytes], clients: int) -> Iterator[None]:
    cycle = itertools.cycle(requests)

    async def load(ended: threading.Event) -> None:
        tasks = [asyncio.create_task(_client(port, cycle, ended)) for _ in range(clients)]
        while not ended.is_set():
            await asyncio.sleep(RETRY_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with _in_thread(lambda ended: asyncio.run(load(ended))):
        yield


@contextmanager
def _dripping_uploads(
    port: int, head: bytes, count: int, address: str = "127.0.0.1"
) -> Iterator[None]:
    """Sends the head of a request on `count` connections from an address, then a byte at a time."""

    def drip(ended: threading.Event) -> None:
        connections: list[socket.socket] = []
        while True:
            connections = [connection for connection in connections if _sends(connection, b"x")]
            while len(connections) < count:
                connection = socket.create_connection(
                    ("127.0.0.1", port), source_address=(address, 0)
                )
                connections.append(connection)
                connection.sendall(head)
            if ended.wait(_DRIP_S):
                break
        for connection in connections:
            connection.close()

    with _in_thread(drip):
        yield


async def _client(port: int, requests: Iterator[bytes], ended: threading.Event) -> None:
    session = ClientSession(port)
    try:
        while not ended.is_set():
            exchange = await session.send(next(requests))
            if exchange.status != 200:
                await asyncio.sleep(RETRY_S)
    finally:
        session.close()


def _sends(connection: socket.socket, data: bytes) -> bool:
    """Sends data; returns False and closes the connection if its peer has closed it."""
    with suppress(OSError):
        connection.sendall(data)
        return True
    connection.close()
    return False


@contextmanager
def _in_process(run: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Runs a function in a process, which takes no time of this one's interpreter."""
    process = multiprocessing.get_context("spawn").Process(target=run, args=arguments)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


@contextmanager
def _in_thread(run: Callable[[threading.Event], None]) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=run, args=(ended,), name="background")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
