"""Good and bad input for a long time: what is answered, and how memory grows."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from benchmarks.measurement.reading import Measurement, Reading, Unit
from benchmarks.measurement.result import Target
from benchmarks.service.inputs.bad_requests import Case, bad_cases, odd_cases, only
from benchmarks.service.inputs.images import made_up_photographs
from benchmarks.service.load.connection import Connection, NoAnswer
from benchmarks.service.load.request import post
from benchmarks.service.measurements.throughput import parameters
from benchmarks.service.plan import LIBRARIES, Plan
from benchmarks.service.server.memory_growth import Held, growth, sampled
from benchmarks.service.server.process import eulerlora_server

CPU = torch.device("cpu")
BAD = 0.3
CLIENTS = 4
SAMPLES = 300  # of memory, in the whole time
GROWTH: dict[Held, Target | None] = {"rss": Target(bound="at most", value=0.02), "pss": None}
PATIENCE_S = 60.0
LEFT = -1
NOTHING = -2


def mixed_input(plan: Plan) -> Iterator[Reading]:
    """Growth of memory after the first while, and the share of right answers."""
    photographs = made_up_photographs(plan.photographs)
    good = [
        Case(f"good, {mode}", post(each, parameters=parameters(mode)), only(200))
        for each in photographs
        for mode in ("det", "stoch")
    ] + odd_cases(photographs[0])
    bad = bad_cases(photographs[0])
    with (
        eulerlora_server(plan.options) as server,
        sampled(server.pid, plan.mixed_s / SAMPLES) as samples,
    ):
        found = asyncio.run(mix(server.port, good, bad, plan.mixed_s))
    wrong = {case: count for case, count in found.items() if not right(*case)}
    sizes = {
        "seconds": plan.mixed_s,
        "requests": found.total(),
        "share_bad": sum(count for (case, _), count in found.items() if case in bad)
        / found.total(),
        "kinds_of_bad": len(bad),
        "wrong": {f"{case.name}: {status}": count for (case, status), count in wrong.items()},
    }
    load = f"{plan.mixed_s:g} s of mixed input, {100 * BAD:.0f}% bad"
    for held, target in GROWTH.items():
        measurement = _measurement(
            f"{load}: {held.upper()} growth after the first {plan.settle_s:g} s",
            "of the process tree; spread: all samples over the first",
            target,
        )
        held_bytes = [float(getattr(each, held)) for each in samples]
        over_first = [each / held_bytes[0] - 1 for each in held_bytes]
        yield measurement.reading(growth(samples, plan.settle_s, held), over_first, CPU, sizes)
    shares = _measurement(
        f"{load}: answered as documented",
        f"all of the {len(bad)} bad kinds and the {len(good)} good ones; spread: by kind",
        Target(bound="at least", value=1.0),
    )
    by_kind = [float(right(*case)) for case in found]
    yield shares.reading(1 - sum(wrong.values()) / found.total(), by_kind, CPU, sizes)


def right(case: Case, status: int) -> bool:
    """Whether an answer is one that the case allows."""
    return status in case.statuses or (status == LEFT and not case.statuses)


async def mix(
    port: int, good: Sequence[Case], bad: Sequence[Case], seconds: float
) -> Counter[tuple[Case, int]]:
    """How often each case got each status; `NOTHING` for no answer, `LEFT` where none was awaited.

    Bad cases come in turn, so that each kind does; good ones at random.
    """
    until, chance = time.monotonic() + seconds, random.Random(0)
    found: Counter[tuple[Case, int]] = Counter()
    turn = 0

    async def client() -> None:
        nonlocal turn
        connection: Connection | None = None
        while time.monotonic() < until:
            if chance.random() < BAD:
                turn += 1
                case = bad[turn % len(bad)]
            else:
                case = chance.choice(good)
            status, connection = await _status(port, connection, case)
            found[case, status] += 1
        if connection is not None:
            connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found


async def _status(
    port: int, connection: Connection | None, case: Case
) -> tuple[int, Connection | None]:
    """The status of one request, and the connection where it can be used again."""
    try:
        if connection is None or not connection.usable:
            connection = await Connection.to(port)
        if case.statuses:
            answer = await asyncio.wait_for(connection.ask(case.request), PATIENCE_S)
            return answer.status, connection
        await connection.send(case.request)
        status = LEFT
    except (NoAnswer, TimeoutError):
        status = NOTHING
    if connection is not None:
        connection.close()
    return status, None


def _measurement(name: str, what: str, target: Target | None) -> Measurement:
    unit: Unit = "share"
    return Measurement(name=name, what=what, unit=unit, target=target, libraries=LIBRARIES)
