"""Throughput over HTTP at saturation, compared with the engine on the same images."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.service.inputs.images import ham10000_images, synthetic_images
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.garbage_collection import short_gc_pauses
from benchmarks.service.load.request import post
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.references.engine import Run, Source, engine_process
from benchmarks.service.references.library import SAMPLES
from benchmarks.service.server.process import eulerlora_server
from eulerlora_client.contract.sampling import Mode

CPU = torch.device("cpu")
MIN_RATIO = 0.90
REFERENCES: dict[Source, str] = {
    "decoded": "the engine alone, images decoded beforehand",
    "files": "the engine alone, which decodes each batch before it runs it",
}


def throughput(plan: Plan) -> Iterator[Result]:
    """Compares both modes and all images with the engine, with and without decoding."""
    image_sets = {"made-up images": synthetic_images(plan.image_count)}
    if plan.real_images is not None:
        image_sets["HAM10000"] = ham10000_images(plan.real_images, plan.image_count)
    with short_gc_pauses(), eulerlora_server(plan.options) as server:
        for name, images in image_sets.items():
            for mode in ("det", "stoch"):
                yield from _results(plan, name, images, mode, server.port)


def _results(
    plan: Plan, name: str, images: Sequence[bytes], mode: Mode, port: int
) -> Iterator[Result]:
    requests = [post(image, parameters=parameters(mode)) for image in images]
    count = plan.responses.of(mode)
    with tempfile.TemporaryDirectory() as folder:
        for index, image in enumerate(images):
            (Path(folder) / f"{index:04}.jpg").write_bytes(image)
        with engine_process(Path(folder), mode, plan.batch_rows, count) as engine:
            closed_loop(port, requests, plan.clients, count)  # warm-up
            runs = [_run(plan, port, requests, engine, count) for _ in range(plan.runs)]
    for source, reference in REFERENCES.items():
        comparison = Comparison(
            name=f"throughput over HTTP, mode {mode}, {name} / {reference}",
            ours=f"HTTP, {plan.clients} clients",
            reference=reference,
            target=Target(bound="at least", value=MIN_RATIO),
            unit="answers/s",
            libraries=LIBRARIES,
        )
        loads = [load for load, _ in runs]
        yield comparison.result(
            [load.rate for load in loads],
            [count / seconds[source] for _, seconds in runs],
            CPU,
            _sizes(plan, loads, mode, images),
        )


def _run(
    plan: Plan, port: int, requests: Sequence[bytes], engine: Run, count: int
) -> tuple[Load, dict[Source, float]]:
    load = closed_loop(port, requests, plan.clients, count)
    return load, {source: engine(source) for source in REFERENCES}


def _sizes(
    plan: Plan, loads: Sequence[Load], mode: Mode, images: Sequence[bytes]
) -> dict[str, object]:
    return {
        "mode": mode,
        "samples": SAMPLES if mode == "stoch" else 1,
        "clients": plan.clients,
        "engine_batch_rows": plan.batch_rows,
        "answers_a_run": plan.responses.of(mode),
        "image_bytes": sum(map(len, images)) // len(images),
        "not_answered": sum(len(load.exchanges) - len(load.successful) for load in loads),
        "clients_share_of_a_core": max(load.client_share for load in loads),
    }


def parameters(mode: Mode) -> dict[str, object]:
    """Returns the query parameters of a request."""
    return {"mode": mode, "samples": SAMPLES} if mode == "stoch" else {"mode": mode}
