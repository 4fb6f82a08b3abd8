"""Answers per second over HTTP at saturation, and the time that the service adds to one request."""

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from http.client import HTTPConnection
from itertools import cycle, islice
from multiprocessing import get_context
from statistics import median
from typing import Literal

import torch

from benchmarks.results import Measurement, Result, at_least, at_most
from benchmarks.service.images import synthetic_images
from benchmarks.service.load import (
    SAMPLES,
    Load,
    closed_loop,
    parameters,
    post,
    short_gc_pauses,
)
from benchmarks.service.plan import Plan
from benchmarks.service.references import InferenceInput, decode, default_model, predict
from benchmarks.service.server import eulerlora_server
from eulerlora_client.contract.sampling import Mode

Source = Literal["decoded", "files"]

CPU = torch.device("cpu")
MIN_RATIO = at_least(0.90)
MAX_ADDED = at_most(0.002)
MODES: tuple[Mode, ...] = ("det", "stoch")
WARMUP_REQUESTS = 20
REFERENCES: dict[Source, str] = {
    "decoded": "the engine alone, images decoded beforehand",
    "files": "the engine alone, which decodes each batch before it runs it",
}


def throughput(plan: Plan) -> Iterator[Result]:
    """Compares both modes with the engine, with and without decoding."""
    images = synthetic_images(plan.image_count)
    with (
        short_gc_pauses(),
        eulerlora_server(plan.options) as server,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as engine,
    ):
        for mode in MODES:
            count = plan.responses.of(mode)
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
            for source, measured in rates.items():
                measurement = Measurement(
                    name=f"throughput over HTTP, mode {mode} / {REFERENCES[source]}",
                    ours=f"HTTP, {plan.clients} clients",
                    reference=REFERENCES[source],
                    target=MIN_RATIO,
                    unit="answers/s",
                )
                yield measurement.comparison(
                    [load.rate for load in loads], measured, CPU, _sizes(plan, loads, mode)
                )


def engine_seconds(
    images: Sequence[bytes], mode: Mode, rows: int, count: int, source: Source
) -> float:
    """Returns the seconds of the engine without a service for `count` images.

    images: files, used in a cycle. rows: maximum number of rows of a batch. source: whether the
    files are decoded within the measured time.
    """
    model = default_model()
    decoded = [decode(model, data, mode) for data in images]
    batch_size = max(1, rows // (model.network.settings.adapters * decoded[0].draw.samples))
    started = time.perf_counter()
    inputs: Iterator[InferenceInput] = islice(cycle(decoded), count)
    if source == "files":
        inputs = (decode(model, data, mode) for data in islice(cycle(images), count))
    while batch := list(islice(inputs, batch_size)):
        predict(model, batch)
    return time.perf_counter() - started


def device_rate(plan: Plan, device: torch.device) -> Iterator[Result]:
    """Measures both modes with the embedded checkpoint in bfloat16, decoding included."""
    images = synthetic_images(plan.image_count)
    options = ("--device", str(device), "--precision", "bfloat16", *plan.options)
    with short_gc_pauses(), eulerlora_server(options) as server:
        for mode in MODES:
            requests = [post(image, parameters=parameters(mode)) for image in images]
            count = plan.responses.of(mode)
            closed_loop(server.port, requests, plan.clients, count)  # warm-up
            loads = [
                closed_loop(server.port, requests, plan.clients, count) for _ in range(plan.runs)
            ]
            rates = sorted(load.rate for load in loads)
            measurement = Measurement(
                name=f"service, mode {mode}, bfloat16, with decoding",
                ours=f"HTTP, {plan.clients} clients, the embedded checkpoint",
                unit="answers/s",
            )
            sizes = _sizes(plan, loads, mode)
            yield measurement.reading(rates[len(rates) // 2], rates, device, sizes)


def _sizes(plan: Plan, loads: Sequence[Load], mode: Mode) -> dict[str, object]:
    return {
        "mode": mode,
        "samples": SAMPLES if mode == "stoch" else 1,
        "clients": plan.clients,
        "engine_batch_rows": plan.batch_rows,
        "answers_a_run": plan.responses.of(mode),
        "not_answered": sum(len(load.exchanges) - len(load.successful) for load in loads),
        "clients_share_of_a_core": max(load.client_share for load in loads),
    }


def single_request(plan: Plan) -> Iterator[Result]:
    """Measures what the service adds to sequential requests on one connection."""
    images = synthetic_images(plan.image_count)
    with eulerlora_server(plan.options) as server:
        connection = HTTPConnection("127.0.0.1", server.port)
        try:
            added = [
                added_seconds(connection, images[index % len(images)])
                for index in range(WARMUP_REQUESTS + plan.single_requests)
            ][WARMUP_REQUESTS:]
        finally:
            connection.close()
    measurement = Measurement(
        name="time added to a lone request, mode det",
        ours="median of: time at the client, less decode and model of Server-Timing",
        target=MAX_ADDED,
    )
    yield measurement.reading(median(added), added, CPU, {"requests": len(added)})


def added_seconds(connection: HTTPConnection, image: bytes) -> float:
    """Returns the time of a request beyond decoding and model. Raises ValueError if it fails."""
    started = time.perf_counter()
    connection.request("POST", "/predict", image, {"Content-Type": "image/jpeg"})
    response = connection.getresponse()
    content = response.read()
    wall_s = time.perf_counter() - started
    if response.status != 200:
        raise ValueError(f"expected status 200, got {response.status}: {content!r}")
    timing = response.headers["Server-Timing"]
    durations = re.findall(r"\b(?:decode|model);dur=([\d.]+)", timing)
    return wall_s - sum(map(float, durations)) / 1000
