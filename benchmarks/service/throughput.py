"""Answers per second over HTTP at saturation, and the time that the service adds to one request."""

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from statistics import median
from typing import Literal

import torch

from benchmarks.results import Result, Side, at_least, at_most, comparison
from benchmarks.service.images import synthetic_images
from benchmarks.service.load import (
    Exchange,
    Load,
    closed_loop,
    parameters,
    post,
    short_gc_pauses,
)
from benchmarks.service.plan import ServicePlan
from benchmarks.service.references import decode, default_model, predict
from benchmarks.service.server import eulerlora_server
from eulerlora_contract.sampling import Mode
from service.inference.engine import InferenceItem

Source = Literal["decoded", "files"]

MIN_RATIO = at_least(0.90)
MAX_ADDED = at_most(0.002)
MODES: tuple[Mode, ...] = ("det", "stoch")
WARMUP_REQUESTS = 20
REFERENCES: dict[Source, str] = {
    "decoded": "the engine alone, images decoded beforehand",
    "files": "the engine alone, which decodes each batch before it runs it",
}


def throughput(plan: ServicePlan) -> Iterator[Result]:
    """Compares both modes with the engine, with and without decoding."""
    images = synthetic_images(plan.image_count)
    with (
        short_gc_pauses(),
        eulerlora_server(plan.options) as server,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as engine,
    ):
        for mode in MODES:
            count = plan.responses[mode]
            requests = [post(image, parameters=parameters(mode)) for image in images]
            closed_loop(server.port, requests, plan.clients, count)  # warm-up
            loads: list[Load] = []
            rates: dict[Source, list[float]] = {source: [] for source in REFERENCES}
            for run in range(-1, plan.runs):  # the first warms up the engine
                if run >= 0:
                    loads.append(closed_loop(server.port, requests, plan.clients, count))
                for source, measured in rates.items():
                    work = (images, mode, plan.batch_rows, count, source)
                    seconds = engine.submit(engine_seconds, *work).result()
                    if run >= 0:
                        measured.append(count / seconds)
            ours = Side(f"HTTP, {plan.clients} clients", [load.rate for load in loads])
            for source, measured in rates.items():
                reference = Side(REFERENCES[source], measured)
                name = f"throughput over HTTP, mode {mode} / {REFERENCES[source]}"
                yield comparison(name, ours, reference, MIN_RATIO, "answers/s")


def engine_seconds(
    images: Sequence[bytes], mode: Mode, rows: int, count: int, source: Source
) -> float:
    """The seconds of the engine without a service for `count` images.

    images: files, used in a cycle. rows: maximum number of rows of a batch. source: whether the
    files are decoded within the measured time.
    """
    model = default_model()
    decoded = [decode(model, data, mode) for data in images]
    batch_size = max(1, rows // (model.network.settings.adapters * decoded[0].draw.samples))
    started = time.perf_counter()
    inputs: Iterator[InferenceItem] = islice(cycle(decoded), count)
    if source == "files":
        inputs = (decode(model, data, mode) for data in islice(cycle(images), count))
    while batch := list(islice(inputs, batch_size)):
        predict(model, batch)
    return time.perf_counter() - started


def device_rate(plan: ServicePlan, device: torch.device) -> Iterator[Result]:
    """Measures both modes with the embedded checkpoint in bfloat16, decoding included."""
    images = synthetic_images(plan.image_count)
    options = ("--device", str(device), "--precision", "bfloat16", *plan.options)
    with short_gc_pauses(), eulerlora_server(options) as server:
        for mode in MODES:
            requests = [post(image, parameters=parameters(mode)) for image in images]
            count = plan.responses[mode]
            closed_loop(server.port, requests, plan.clients, count)  # warm-up
            loads = [
                closed_loop(server.port, requests, plan.clients, count) for _ in range(plan.runs)
            ]
            rates = [load.rate for load in loads]
            name = f"service, mode {mode}, bfloat16, with decoding"
            ours = f"HTTP, {plan.clients} clients, the embedded checkpoint"
            yield Result(name, ours, median(rates), rates, "answers/s")


def single_request(plan: ServicePlan) -> Iterator[Result]:
    """Measures what the service adds to sequential requests on one connection."""
    requests = [post(image) for image in synthetic_images(plan.image_count)]
    with short_gc_pauses(), eulerlora_server(plan.options) as server:
        count = WARMUP_REQUESTS + plan.single_requests
        load = closed_loop(server.port, requests, clients=1, responses=count)
    added = [added_seconds(exchange) for exchange in load.successful[WARMUP_REQUESTS:]]
    yield Result(
        name="time added to a lone request, mode det",
        ours="median of: time at the client, less decode and model of Server-Timing",
        value=median(added),
        measured=added,
        target=MAX_ADDED,
    )


def added_seconds(exchange: Exchange) -> float:
    """The time of an answered request beyond decoding and model."""
    assert exchange.response is not None
    timing = exchange.response.headers["server-timing"]
    durations = re.findall(r"\b(?:decode|model);dur=([\d.]+)", timing)
    return exchange.seconds - sum(map(float, durations)) / 1000
