"""Answers per second over HTTP at saturation, and the time that the service adds to one request."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from itertools import cycle, islice
from multiprocessing import get_context
from statistics import median
from typing import Literal

import torch

from eulerlora_contract.sampling import MODES, Mode
from eulerlora_lab.benchmarks.device_engine import utilisation
from eulerlora_lab.benchmarks.results import (
    Result,
    Side,
    Target,
    at_least,
    at_most,
    comparison,
)
from eulerlora_lab.benchmarks.service.load import (
    REQUEST_SAMPLES,
    ClientSession,
    Exchange,
    MeasuredLoad,
    closed_loop,
    parameters,
    percentile,
    post,
    post_form,
    short_gc_pauses,
)
from eulerlora_lab.benchmarks.service.plan import ServicePlan
from eulerlora_lab.benchmarks.service.references import default_model, inference_item, predict
from eulerlora_lab.benchmarks.service.server import (
    ServerProcess,
    eulerlora_server,
    free_port,
    paused,
    server_process,
)
from service.inference.engine import InferenceItem

_Source = Literal["decoded", "files"]

_MIN_RATIO = at_least(0.90)
_MIN_AUTO = at_least(1.9)
_MAX_ADDED = at_most(0.002)
_AS_STARTED = ("--precision", "auto", "--runtime", "auto")
_LITSERVE_NETWORKS: Mapping[str, tuple[Sequence[Mode], str, Target]] = {
    "chosen": (MODES, "our library in the precision and runtime that it chooses", at_least(1.1)),
    "exported": (("det",), "the exported network by OpenVINO", at_least(1.0)),
}
"""Modes, description and least ratio by network of `litserve_server`."""
_PEER_GRACE_S = 1.0  # LitServe does not stop all its processes on SIGTERM
_WARMUP_REQUESTS = 20
_UTILISATION_EVERY_S = 0.5
_REFERENCES: dict[_Source, str] = {
    "decoded": "the engine alone, images decoded beforehand",
    "files": "the engine alone, which decodes each batch before it runs it",
}


def throughput(plan: ServicePlan) -> Iterator[Result]:
    """Compares both modes with the engine, with and without decoding."""
    images = plan.images()
    with (
        short_gc_pauses(),
        eulerlora_server(plan.options) as server,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as engine,
    ):
        for mode in MODES:
            count = plan.responses[mode]
            requests = [post(image, parameters=parameters(mode)) for image in images]
            closed_loop(server.port, requests, plan.clients, count)  # warm-up
            loads: list[MeasuredLoad] = []
            rates: dict[_Source, list[float]] = {source: [] for source in _REFERENCES}
            for run in range(-1, plan.runs):  # the first warms up the engine
                if run >= 0:
                    loads.append(closed_loop(server.port, requests, plan.clients, count))
                for source, measured in rates.items():
                    work = (images, mode, plan.batch_rows, count, source)
                    seconds = engine.submit(_engine_seconds, *work).result()
                    if run >= 0:
                        measured.append(count / seconds)
            ours = Side(f"HTTP, {plan.clients} clients", [load.rate for load in loads])
            for source, measured in rates.items():
                reference = Side(_REFERENCES[source], measured)
                name = f"throughput over HTTP, mode {mode} / {_REFERENCES[source]}"
                yield comparison(name, ours, reference, _MIN_RATIO, "answers/s")


def _engine_seconds(
    images: Sequence[bytes], mode: Mode, rows: int, count: int, source: _Source
) -> float:
    """The seconds of the engine without a service for `count` images.

    images: files, used in a cycle. rows: maximum number of rows of a batch. source: whether the
    files are decoded within the measured time.
    """
    model = default_model()
    decoded = [inference_item(model, data, mode) for data in images]
    batch_size = max(1, rows // (model.network.settings.adapters * decoded[0].draw.samples))
    started = time.perf_counter()
    inputs: Iterator[InferenceItem] = islice(cycle(decoded), count)
    if source == "files":
        inputs = (inference_item(model, data, mode) for data in islice(cycle(images), count))
    while batch := list(islice(inputs, batch_size)):
        predict(model, batch)
    return time.perf_counter() - started


def device_rate(plan: ServicePlan, device: torch.device) -> Iterator[Result]:
    """Measures both modes with the embedded checkpoint in bfloat16, decoding included."""
    images = plan.images()
    options = ("--device", str(device), "--precision", "bfloat16", *plan.options)
    with short_gc_pauses(), eulerlora_server(options) as server:
        for mode in MODES:
            requests = [post(image, parameters=parameters(mode)) for image in images]
            count = plan.responses[mode]
            closed_loop(server.port, requests, plan.clients, count)  # warm-up
            name = f"service, mode {mode}, bfloat16, with decoding"
            with utilisation(name, device, _UTILISATION_EVERY_S) as busy:
                loads = [
                    closed_loop(server.port, requests, plan.clients, count)
                    for _ in range(plan.runs)
                ]
            rates = [load.rate for load in loads]
            ours = f"HTTP, {plan.clients} clients, the embedded checkpoint"
            yield Result(name, ours, median(rates), rates, "answers/s")
            yield from busy


def as_started(plan: ServicePlan) -> Iterator[Result]:
    """Compares the service as it starts with LitServe and the fastest networks."""
    images = plan.images()
    with short_gc_pauses(), eulerlora_server((*_AS_STARTED, *plan.options)) as ours:
        for network, (modes, description, target) in _LITSERVE_NETWORKS.items():
            pairs = list(zip(images, cycle(modes), strict=False))
            requests = [post(image, parameters=parameters(mode)) for image, mode in pairs]
            with _litserve(network) as peer:
                loads = (ours, peer, requests), (peer, ours, [_form(*pair) for pair in pairs])
                rates: tuple[list[float], list[float]] = ([], [])
                for run in range(-1, plan.runs):  # the first warms up
                    for (server, other, sent), measured in zip(loads, rates, strict=True):
                        with paused(other.pid):
                            count = plan.responses["stoch"]
                            load = closed_loop(server.port, sent, plan.clients, count)
                        if run >= 0:
                            measured.append(load.rate)
            yield comparison(
                f"as the service starts, {' and '.join(modes)} / LitServe, {description}",
                Side(f"HTTP, {plan.clients} clients", rates[0]),
                Side(f"LitServe, {description}", rates[1]),
                target,
                "answers/s",
            )


def _litserve(network: str) -> AbstractContextManager[ServerProcess]:
    port = free_port()
    program = "eulerlora_lab.benchmarks.service.litserve_server"
    return server_process(["-m", program, str(port), network], port, "/health", _PEER_GRACE_S)


def _form(image: bytes, mode: Mode) -> bytes:
    return post_form([("file", ("a.jpg", image, "image/jpeg"))], {"mode": mode})


def triage_throughput(plan: ServicePlan) -> Iterator[Result]:
    """Compares `/triage?samples=auto` with `samples=4`, as the service starts.

    How many samples `auto` needs depends on the images: state lesions for a figure about lesions.
    """
    images = plan.images()
    loads: dict[object, list[MeasuredLoad]] = {"auto": [], REQUEST_SAMPLES: []}
    options = (*_AS_STARTED, *plan.options)
    requests = {
        samples: [post(image, parameters={"samples": samples}, path="/triage") for image in images]
        for samples in loads
    }
    with short_gc_pauses(), eulerlora_server(options) as server:
        for run in range(-1, plan.runs):  # the first warms up
            for samples, measured in loads.items():
                work = (requests[samples], plan.triage_clients, plan.responses["stoch"])
                load = closed_loop(server.port, *work)
                if run >= 0:
                    measured.append(load)
    auto, four = (
        Side(
            f"samples={samples}, {plan.triage_clients} clients; p50 and p99 "
            + " and ".join(f"{1000 * _median_percentile(measured, at):.0f} ms" for at in (50, 99)),
            [load.rate for load in measured],
        )
        for samples, measured in loads.items()
    )
    name = "triage, as the service starts: samples=auto / samples=4"
    yield comparison(name, auto, four, _MIN_AUTO, "answers/s")


def _median_percentile(loads: Sequence[MeasuredLoad], percent: float) -> float:
    return median(percentile(load.successful, percent) for load in loads)


def lone_request(plan: ServicePlan) -> Iterator[Result]:
    """Measures sequential requests on one connection, and the same to the plain FastAPI route."""
    images = plan.images()
    with short_gc_pauses(), eulerlora_server(plan.options) as ours, _plain_server() as plain:
        for mode in MODES:
            exchanges = asyncio.run(_alternating(ours.port, plain.port, images, mode, plan))
            times = [[exchange.seconds for exchange in one] for one in exchanges]
            yield comparison(
                f"a lone request, mode {mode} / the plain FastAPI route",
                Side("one request after another", times[0]),
                Side("the same to the plain route", times[1]),
            )
            added = [_added_seconds(exchange) for exchange in exchanges[0]]
            yield Result(
                name=f"time added to a lone request, mode {mode}",
                ours="median of: time at the client, less decode and model of Server-Timing",
                value=median(added),
                measured=added,
                target=_MAX_ADDED,
            )


async def _alternating(
    port: int, plain_port: int, images: Sequence[bytes], mode: Mode, plan: ServicePlan
) -> tuple[list[Exchange], list[Exchange]]:
    """The exchanges with the service and with the plain route, without those that warm up."""
    service, plain = ClientSession(port), ClientSession(plain_port)
    exchanges: tuple[list[Exchange], list[Exchange]] = [], []
    for image in islice(cycle(images), _WARMUP_REQUESTS + plan.single_requests):
        files = [("file", ("a.jpg", image, "image/jpeg"))]
        exchanges[0].append(await service.send(post_form(files, parameters=parameters(mode))))
        exchanges[1].append(await plain.send(post_form(files, {"mode": mode})))
    service.close()
    plain.close()
    return exchanges[0][_WARMUP_REQUESTS:], exchanges[1][_WARMUP_REQUESTS:]


def _plain_server() -> AbstractContextManager[ServerProcess]:
    """Runs `benchmarks.service.references` while the block runs."""
    port = free_port()
    return server_process(
        ["-m", "eulerlora_lab.benchmarks.service.references", str(port)], port, "/readyz"
    )


def _added_seconds(exchange: Exchange) -> float:
    """The time of an answered request beyond decoding and model."""
    assert exchange.response is not None
    timing = exchange.response.headers["server-timing"]
    durations = re.findall(r"\b(?:decode|model);dur=([\d.]+)", timing)
    return exchange.seconds - sum(map(float, durations)) / 1000
