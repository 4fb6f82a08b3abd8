"""Response times of a client while another one overloads the service, and without that."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.service.inputs import attacks
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.background import background_clients, dripping_uploads
from benchmarks.service.load.closed_loop import Exchange, closed_loop
from benchmarks.service.load.request import as_client, get, post
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server

CPU = torch.device("cpu")
VICTIM = "10.0.0.1"
MAX_RATIO = 2.0
BATCH, LARGE_BATCH = 32, 20
SCANS = 300
ANNOUNCED = (
    b"POST /predict/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 134217728\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
)

_numbers = itertools.count(1)

Attack = Callable[[int], AbstractContextManager[None]]


def attackers(plan: Plan) -> Iterator[Result | Reading]:
    """Compares the median and the 99th percentile of a client, and counts its refusals."""
    requests = [as_client(post(image), VICTIM) for image in synthetic_images(plan.image_count)]
    with eulerlora_server(plan.options) as server:
        victim = partial(_victim, server.port, requests, plan.victim_requests)
        victim()
        for name, attack in attacks_by_name().items():
            alone, attacked = [], []
            for _ in range(plan.attack_runs):
                alone.append(victim())
                with attack(server.port):
                    attacked.append(victim())
            yield from _results(name, alone, attacked)


def attacks_by_name() -> Mapping[str, Attack]:
    """Returns the attacks by their descriptions; each runs while its context is open."""
    webp = attacks.batch([attacks.large_webp()], LARGE_BATCH)
    scans = post(attacks.jpeg_of_many_scans(SCANS))
    return {
        f"a batch of {BATCH} photographs": _clients(attacks.batch(attacks.photographs(), BATCH), 1),
        f"4 batches of {LARGE_BATCH} lossless WebP of 24 megapixels": _clients(webp, 4),
        f"4 clients with JPEGs of {SCANS} scans": _clients(scans, 4),
        "4 uploads that announce 128 MB": partial(
            dripping_uploads, head=as_client(ANNOUNCED, _attacker()), count=4
        ),
        "16 clients with photographs of 12 megapixels": _clients(
            post(attacks.phone_photograph()), 16
        ),
        "64 clients that read /metrics": _clients(get("/metrics"), 64),
    }


def _clients(request: bytes, count: int) -> Attack:
    return partial(background_clients, requests=[as_client(request, _attacker())], clients=count)


def _attacker() -> str:
    """Returns a new address: the quota of an attack must not limit the next one."""
    return f"10.0.1.{next(_numbers)}"


def _victim(port: int, requests: Sequence[bytes], responses: int) -> list[Exchange]:
    return closed_loop(port, requests, 1, responses).exchanges


def _results(
    name: str, alone: list[list[Exchange]], attacked: list[list[Exchange]]
) -> Iterator[Result | Reading]:
    sizes = {"requests": sum(map(len, attacked)), "runs": len(attacked)}
    for percentile, label in ((50, "p50"), (99, "p99")):
        comparison = Comparison(
            name=f"{name}: {label} of another client / without them",
            ours="one request after another, meanwhile",
            reference="the same, alone",
            target=Target(bound="at most", value=MAX_RATIO) if label == "p99" else None,
            libraries=LIBRARIES,
        )
        yield comparison.result(
            _percentiles(attacked, percentile), _percentiles(alone, percentile), CPU, sizes
        )
    refused = [
        float(np.mean([exchange.status != 200 for exchange in exchanges])) for exchanges in attacked
    ]
    measurement = Measurement(
        name=f"{name}: requests of another client without an answer",
        what="status other than 200",
        unit="share",
        target=Target(bound="at most", value=0.0),
        libraries=LIBRARIES,
    )
    codes = Counter(_code(exchange) for run in attacked for exchange in run)
    yield measurement.reading(float(np.mean(refused)), refused, CPU, {**sizes, "codes": codes})


def _code(exchange: Exchange) -> str:
    """Returns the problem code of a response, `answered` without a problem."""
    if exchange.response is None:
        return "no response"
    return str(json.loads(exchange.response.body).get("code", "answered"))


def _percentiles(runs: list[list[Exchange]], percentile: int) -> list[float]:
    return [
        float(
            np.percentile(
                [exchange.seconds for exchange in run if exchange.status == 200], percentile
            )
        )
        for run in runs
    ]
