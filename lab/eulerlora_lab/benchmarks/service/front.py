"""CPU time and rate of the answers of a network that costs nothing: HTTP, decoding, answers."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from statistics import median

from eulerlora_lab.benchmarks.results import Result, Side, Target, at_least, at_most, comparison
from eulerlora_lab.benchmarks.service.load import closed_loop, post_form, short_gc_pauses
from eulerlora_lab.benchmarks.service.plan import ServicePlan
from eulerlora_lab.benchmarks.service.server import (
    ServerProcess,
    free_port,
    paused,
    server_process,
    tree,
)

_PROGRAMS = "eulerlora_lab.benchmarks.service"
_GRACE_S = 5.0
_TARGETS = {"/predict": at_most(0.006), "/triage": at_most(0.008)}
_MIN_RATIO = at_least(1.5)


@dataclass(frozen=True)
class _CpuSeconds:
    """CPU time of a server: of its first process, and of all others that it has started."""

    main: float
    others: float

    @classmethod
    def of(cls, pid: int) -> "_CpuSeconds":
        main, *others = (process.cpu_times() for process in tree(pid))
        ended = [main.children_user, main.children_system]
        for times in others:
            ended += [times.user, times.system, times.children_user, times.children_system]
        return cls(main.user + main.system, sum(ended))


@dataclass(frozen=True)
class _FrontLoad:
    """A closed loop.

    Attributes:
        main_s: CPU seconds per answer in the first process of the server.
        others_s: Likewise, in all others.
    """

    rate: float
    main_s: float
    others_s: float

    @property
    def total_s(self) -> float:
        return self.main_s + self.others_s


def front(plan: ServicePlan) -> Iterator[Result]:
    """Measures `/predict` and `/triage` beside a plain route and LitServe."""
    files = [[("file", ("a.jpg", image, "image/jpeg"))] for image in plan.images()[: plan.clients]]
    requests = {path: [post_form(one, path=path) for one in files] for path in _TARGETS}
    with short_gc_pauses(), ExitStack() as running:
        service, *others = map(running.enter_context, _servers(plan.options))
        sides = [*((service, path) for path in _TARGETS), *((one, "/predict") for one in others)]
        loads: list[list[_FrontLoad]] = [[] for _ in sides]
        for run in range(-1, plan.runs):  # the first warms up, and stores the trajectories
            for (server, path), measured in zip(sides, loads, strict=True):
                with ExitStack() as waiting:
                    for other in {service, *others} - {server}:
                        waiting.enter_context(paused(other.pid))
                    load = _load(server, requests[path], plan)
                if run >= 0:
                    measured.append(load)
    predict, triage, plain, litserve = loads
    for path, measured in zip(_TARGETS, (predict, triage), strict=True):
        yield _cpu(f"{path}, CPU time of an answer", measured, _TARGETS[path])
    yield _cpu("a plain FastAPI route, CPU time of an answer", plain)
    yield _cpu("LitServe, CPU time of an answer", litserve)
    ours = Side(f"/predict, {plan.clients} clients", [load.rate for load in predict])
    for name, measured, target in (
        ("a plain FastAPI route", plain, None),
        ("LitServe", litserve, _MIN_RATIO),
    ):
        reference = Side(name, [load.rate for load in measured])
        yield comparison(f"a free network, /predict / {name}", ours, reference, target, "answers/s")


def _servers(options: Sequence[str]) -> Iterator[AbstractContextManager[ServerProcess]]:
    """The service, the plain route and LitServe."""
    for program, arguments, ready_path in (
        ("free_network", ["--port", "{port}", *options], "/readyz"),
        ("free_network", ["plain", "{port}"], "/readyz"),
        ("litserve_server", ["{port}", "free"], "/health"),
    ):
        port = free_port()
        filled = [argument.format(port=port) for argument in arguments]
        yield server_process(["-m", f"{_PROGRAMS}.{program}", *filled], port, ready_path, _GRACE_S)


def _load(server: ServerProcess, requests: Sequence[bytes], plan: ServicePlan) -> _FrontLoad:
    before = _CpuSeconds.of(server.pid)
    load = closed_loop(server.port, requests, plan.clients, plan.responses["det"])
    after = _CpuSeconds.of(server.pid)
    count = len(load.exchanges)
    main_s, others_s = after.main - before.main, after.others - before.others
    return _FrontLoad(load.rate, main_s / count, others_s / count)


def _cpu(name: str, loads: Sequence[_FrontLoad], target: Target | None = None) -> Result:
    main, others = (
        1000 * median(values)
        for values in zip(*((load.main_s, load.others_s) for load in loads), strict=True)
    )
    rate = median(load.rate for load in loads)
    total = [load.total_s for load in loads]
    return Result(
        name=f"a free network: {name}",
        ours=f"{main:.1f} ms in the first process, {others:.1f} in others; {rate:.0f} answers/s",
        value=median(total),
        measured=total,
        target=target,
    )
