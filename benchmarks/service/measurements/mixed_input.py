"""Valid and invalid input for a long time: responses and memory growth."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from benchmarks.measurement.reading import Measurement, Reading, Unit
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.bad_requests import Case, bad_cases, only, unusual_cases
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.connection import Connection, NoResponseError
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.memory_growth import MemoryField, growth, sampled
from benchmarks.service.server.process import eulerlora_server

CPU = torch.device("cpu")
INVALID_SHARE = 0.3
CLIENTS = 4
MEMORY_SAMPLES = 300
MAX_GROWTH: dict[MemoryField, Target | None] = {
    "rss": Target(bound="at most", value=0.02),
    "pss": None,
}
TIMEOUT_S = 60.0
DISCONNECTED = -1
NO_RESPONSE = -2


def mixed_input(plan: Plan) -> Iterator[Reading]:
    """Measures memory growth after the warm-up and the share of documented responses."""
    images = synthetic_images(plan.image_count)
    valid = [
        Case(f"good, {mode}", post(image, parameters=parameters(mode)), only(200))
        for image in images
        for mode in ("det", "stoch")
    ] + unusual_cases(images[0])
    invalid = bad_cases(images[0])
    with (
        eulerlora_server(plan.options) as server,
        sampled(server.pid, plan.mixed_s / MEMORY_SAMPLES) as samples,
    ):
        counts = asyncio.run(mix(server.port, valid, invalid, plan.mixed_s))
    wrong = {case: count for case, count in counts.items() if not is_documented(*case)}
    sizes = {
        "seconds": plan.mixed_s,
        "requests": counts.total(),
        "share_bad": sum(count for (case, _), count in counts.items() if case in invalid)
        / counts.total(),
        "kinds_of_bad": len(invalid),
        "wrong": {f"{case.name}: {status}": count for (case, status), count in wrong.items()},
    }
    load = f"{plan.mixed_s:g} s of mixed input, {100 * INVALID_SHARE:.0f}% bad"
    for field, target in MAX_GROWTH.items():
        measurement = _measurement(
            f"{load}: {field.upper()} growth after the first {plan.warmup_s:g} s",
            "of the process tree; spread: all samples over the first",
            target,
        )
        sizes_bytes = [float(getattr(sample, field)) for sample in samples]
        over_first = [size / sizes_bytes[0] - 1 for size in sizes_bytes]
        yield measurement.reading(growth(samples, plan.warmup_s, field), over_first, CPU, sizes)
    shares = _measurement(
        f"{load}: answered as documented",
        f"all of the {len(invalid)} bad kinds and the {len(valid)} good ones; spread: by kind",
        Target(bound="at least", value=1.0),
    )
    by_kind = [float(is_documented(*case)) for case in counts]
    yield shares.reading(1 - sum(wrong.values()) / counts.total(), by_kind, CPU, sizes)


def is_documented(case: Case, status: int) -> bool:
    """True if the case allows the status."""
    return status in case.statuses or (status == DISCONNECTED and not case.statuses)


async def mix(
    port: int, valid: Sequence[Case], invalid: Sequence[Case], seconds: float
) -> Counter[tuple[Case, int]]:
    """Returns how often each case got each status.

    The status is NO_RESPONSE without a response, DISCONNECTED if the client did not wait for one.
    Invalid cases are sent in turn, so that every kind occurs; valid ones at random.
    """
    end_s, generator = time.monotonic() + seconds, random.Random(0)
    counts: Counter[tuple[Case, int]] = Counter()
    turn = 0

    async def client() -> None:
        nonlocal turn
        connection: Connection | None = None
        while time.monotonic() < end_s:
            if generator.random() < INVALID_SHARE:
                turn += 1
                case = invalid[turn % len(invalid)]
            else:
                case = generator.choice(valid)
            status, connection = await _status(port, connection, case)
            counts[case, status] += 1
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return counts


async def _status(
    port: int, connection: Connection | None, case: Case
) -> tuple[int, Connection | None]:
    """Returns the status of a request, and the connection if it can be reused."""
    try:
        if connection is None or not connection.usable:
            connection = await Connection.to(port)
        if case.statuses:
            response = await asyncio.wait_for(connection.exchange(case.request), TIMEOUT_S)
            return response.status, connection
        await connection.send(case.request)
        status = DISCONNECTED
    except (NoResponseError, TimeoutError):
        status = NO_RESPONSE
    if connection is not None:
        connection.close()
    return status, None


def _measurement(name: str, what: str, target: Target | None) -> Measurement:
    unit: Unit = "share"
    return Measurement(name=name, what=what, unit=unit, target=target, libraries=LIBRARIES)
