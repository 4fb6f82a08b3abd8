"""Answers per second of the service on a device, decoding included."""

from collections.abc import Iterator

import torch

from benchmarks.measurement.reading import Measurement, Reading
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import closed_loop
from benchmarks.service.load.garbage_collection import short_gc_pauses
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.process import eulerlora_server


def device_rate(plan: Plan, device: torch.device) -> Iterator[Reading]:
    """Returns the answers per second in both modes, with the embedded checkpoint in bfloat16."""
    images = synthetic_images(plan.image_count)
    options = ("--device", str(device), "--precision", "bfloat16", *plan.options)
    with short_gc_pauses(), eulerlora_server(options) as server:
        for mode in ("det", "stoch"):
            requests = [post(image, parameters=parameters(mode)) for image in images]
            count = plan.responses.of(mode)
            closed_loop(server.port, requests, plan.clients, count)  # warm-up
            loads = [
                closed_loop(server.port, requests, plan.clients, count) for _ in range(plan.runs)
            ]
            rates = sorted(load.rate for load in loads)
            measurement = Measurement(
                name=f"service, mode {mode}, bfloat16, with decoding",
                what=f"HTTP, {plan.clients} clients, the embedded checkpoint",
                unit="answers/s",
                libraries=LIBRARIES,
            )
            sizes = {
                "clients": plan.clients,
                "answers_a_run": count,
                "clients_share_of_a_core": max(load.client_share for load in loads),
            }
            yield measurement.reading(rates[len(rates) // 2], rates, device, sizes)
