"""Throughput over HTTP at saturation, and that of the engine alone on the same images."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.service.inputs.images import made_up_photographs, real_photographs
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.garbage_collection import unhindered
from benchmarks.service.load.request import post
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.references.engine import Run, Source, engine_alone
from benchmarks.service.references.library import SAMPLES
from benchmarks.service.server.process import eulerlora_server
from eulerlora.settings import Mode

CPU = torch.device("cpu")
LEAST = 0.90
REFERENCES: dict[Source, str] = {
    "decoded": "the engine alone, images decoded beforehand",
    "files": "the engine alone, which decodes each batch before it runs it",
}


def throughput(plan: Plan) -> Iterator[Result]:
    """For both modes and all images: against the engine with and without decoding."""
    pictures = {"made-up images": made_up_photographs(plan.photographs)}
    if plan.real_images is not None:
        pictures["HAM10000"] = real_photographs(plan.real_images, plan.photographs)
    with unhindered(), eulerlora_server(plan.options) as server:
        for name, photographs in pictures.items():
            for mode in ("det", "stoch"):
                yield from _results(plan, name, photographs, mode, server.port)


def _results(
    plan: Plan, name: str, photographs: Sequence[bytes], mode: Mode, port: int
) -> Iterator[Result]:
    requests = [post(each, parameters=parameters(mode)) for each in photographs]
    count = plan.answers.of(mode)
    with tempfile.TemporaryDirectory() as folder:
        for index, photograph in enumerate(photographs):
            (Path(folder) / f"{index:04}.jpg").write_bytes(photograph)
        with engine_alone(Path(folder), mode, plan.batch_rows, count) as engine:
            closed_loop(port, requests, plan.clients, count)  # warm
            runs = [_run(plan, port, requests, engine, count) for _ in range(plan.runs)]
    for source, reference in REFERENCES.items():
        comparison = Comparison(
            name=f"throughput over HTTP, mode {mode}, {name} / {reference}",
            ours=f"HTTP, {plan.clients} clients",
            reference=reference,
            target=Target(bound="at least", value=LEAST),
            unit="answers/s",
            libraries=LIBRARIES,
        )
        loads = [load for load, _ in runs]
        yield comparison.result(
            [load.rate for load in loads],
            [count / seconds[source] for _, seconds in runs],
            CPU,
            _sizes(plan, loads, mode, photographs),
        )


def _run(
    plan: Plan, port: int, requests: Sequence[bytes], engine: Run, count: int
) -> tuple[Load, dict[Source, float]]:
    load = closed_loop(port, requests, plan.clients, count)
    return load, {source: engine(source) for source in REFERENCES}


def _sizes(
    plan: Plan, loads: Sequence[Load], mode: Mode, photographs: Sequence[bytes]
) -> dict[str, object]:
    return {
        "mode": mode,
        "samples": SAMPLES if mode == "stoch" else 1,
        "clients": plan.clients,
        "engine_batch_rows": plan.batch_rows,
        "answers_a_run": plan.answers.of(mode),
        "image_bytes": sum(map(len, photographs)) // len(photographs),
        "not_answered": sum(len(load.outcomes) - len(load.answered) for load in loads),
        "clients_share_of_a_core": max(load.client_share for load in loads),
    }


def parameters(mode: Mode) -> dict[str, object]:
    """The query of a request in that mode."""
    return {"mode": mode, "samples": SAMPLES} if mode == "stoch" else {"mode": mode}
