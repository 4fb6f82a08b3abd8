"""Peers beside us in one table: `python -m benchmarks.peers [--small]`.

The methods answer the same images with eight members; every one is measured in alternation with
ours, and its memory in a process of its own: the peak beyond the network. The servers have the same
model and library; their loads alternate too. "At equal p99" is the highest rate among the numbers
of clients at which the p99 of the server is at most that of ours with `--clients` clients.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from statistics import median

import click
import numpy as np
import torch

from benchmarks.inference.peers import METHODS, MethodCost, method_costs
from benchmarks.measurement.sizes import FULL, SMALL
from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import Load, closed_loop
from benchmarks.service.load.garbage_collection import short_gc_pauses
from benchmarks.service.measurements.litserve import (
    Batching,
    free_port,
    litserve,
    peer_requests,
    service_requests,
)
from benchmarks.service.server.process import Server, eulerlora_server, server_process
from benchmarks.service.server.process_tree import memory, paused

CPU = torch.device("cpu")
IMAGES = 32
OURS = "eulerlora serve"
CLIENT_COUNTS = (1, 2, 4, 8, 16)

Loads = Mapping[int, Sequence[Load]]
"""The runs by number of clients."""


def ray_batch() -> AbstractContextManager[Server]:
    """Runs Ray Serve with `@serve.batch` while the block runs."""
    port = free_port()
    program = ["-m", "benchmarks.service.references.ray_batch", str(port)]
    return server_process(program, "/readyz", port)


SERVERS: Mapping[str, Callable[[], AbstractContextManager[Server]]] = {
    OURS: eulerlora_server,
    "a plain FastAPI route": lambda: server_process(
        ["-m", "benchmarks.service.references.plain_route"], "/readyz"
    ),
    "LitServe, batches of 8, 5 ms, 2 workers": lambda: litserve(Batching(8, 0.005, workers=2)),
    "Ray Serve, @serve.batch, batches of 8, 5 ms": ray_batch,
}


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each method; by default 15.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Loads of each server."
)
@click.option("--responses", type=click.IntRange(1), default=160, show_default=True)
@click.option("--clients", type=click.Choice(list(map(str, CLIENT_COUNTS))), default="8")
@click.option("--methods/--no-methods", default=True, help="Measure methods.")
@click.option("--servers/--no-servers", default=True, help="Measure servers.")
def main(
    small: bool,
    repeats: int | None,
    runs: int,
    responses: int,
    clients: str,
    methods: bool,
    servers: bool,
) -> None:
    """Measure methods and servers on the CPU and print their table."""
    if methods:
        sizes = SMALL if small else FULL
        if repeats is not None:
            sizes = sizes.model_copy(update={"repeats": repeats})
        click.echo(methods_table(method_costs(sizes, CPU)))
    if servers:
        counts, responses = ((1, 8), 16) if small else (CLIENT_COUNTS, responses)
        loads, memories = server_loads(counts, 1 if small else runs, responses)
        click.echo(servers_table(loads, memories, int(clients)))


def methods_table(costs: Mapping[str, MethodCost]) -> str:
    """Returns the table of the methods. costs: by the names of `METHODS`."""
    lines = [
        "| eight members | 1 image | to ours | 8 images | to ours | memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, cost in costs.items():
        cells = [
            f"{1000 * cost.one_image:.1f} ms", f"{cost.one_image_ratio:.2f}",
            f"{1000 * cost.images:.1f} ms", f"{cost.images_ratio:.2f}",
            f"{cost.memory / 2**20:.0f} MiB",
        ]  # fmt: skip
        lines.append(f"| {METHODS[name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def server_loads(
    counts: Sequence[int], runs: int, responses: int
) -> tuple[dict[str, Loads], dict[str, int]]:
    """Returns the alternating loads of every server, and its memory (PSS) after them in bytes."""
    images = synthetic_images(IMAGES)
    requests = {name: peer_requests(images, ["stoch"]) for name in SERVERS}
    requests[OURS] = service_requests(images, ["stoch"])
    loads: dict[str, dict[int, list[Load]]] = {
        name: {count: [] for count in counts} for name in SERVERS
    }
    with short_gc_pauses(), ExitStack() as running:
        servers = {name: running.enter_context(start()) for name, start in SERVERS.items()}
        for run in range(-1, runs):  # the first warms up
            for name, server in servers.items():
                with ExitStack() as others:
                    for other in servers.values():
                        if other is not server:
                            others.enter_context(paused(other.pid))
                    for count in counts:
                        load = closed_loop(server.port, requests[name], count, responses)
                        click.echo(f"{name}, {count} clients: {load.rate:.1f} answers/s", err=True)
                        if run >= 0:
                            loads[name][count].append(load)
        sizes = {name: memory(server.pid).pss or 0 for name, server in servers.items()}
    return dict(loads), sizes


def servers_table(loads: Mapping[str, Loads], sizes: Mapping[str, int], clients: int) -> str:
    """Returns the table of the servers. clients: of ours, whose p99 is the limit."""
    limit = median(map(p99, loads[OURS][clients]))
    lines = [
        f"| mode stoch, 4 samples | a lone request, p50 | answers/s, {clients} clients | p99 | "
        f"answers/s with a p99 of {1000 * limit:.0f} ms | memory |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, by_clients in loads.items():
        lone = median(_quantile(load, 50) for load in by_clients[min(by_clients)])
        rate = median(load.rate for load in by_clients[clients])
        equal = rate_within(by_clients, limit)
        cells = [
            f"{1000 * lone:.1f} ms",
            f"{rate:.1f}",
            f"{1000 * median(map(p99, by_clients[clients])):.0f} ms",
            "none" if equal is None else f"{equal:.1f}",
            f"{sizes[name] / 2**20:.0f} MiB",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def rate_within(loads: Loads, limit_s: float) -> float | None:
    """Returns the highest median rate with a median p99 within a limit; None if there is none."""
    rates = [
        median(load.rate for load in runs)
        for runs in loads.values()
        if median(map(p99, runs)) <= limit_s
    ]
    return max(rates, default=None)


def p99(load: Load) -> float:
    """Returns the 99th percentile of the seconds of answered requests."""
    return _quantile(load, 99)


def _quantile(load: Load, percent: float) -> float:
    return float(np.percentile([exchange.seconds for exchange in load.successful], percent))


if __name__ == "__main__":
    main()
