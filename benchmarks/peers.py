"""Other methods and other servers beside ours: `python -m benchmarks.peers [--small]`.

The methods answer the same images with eight members; every one is measured in alternation with
ours, and its memory in a process of its own: the peak beyond the network. The servers have the same
model and library, and must give the same probabilities; their loads alternate too. "At equal p99"
is the highest rate among the numbers of clients at which the p99 of the server is at most that of
ours with `--clients` clients.
"""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.baselines.lora_ensemble import LoRAEnsemble
from benchmarks.baselines.naive import naive_logits, ordinary_members, vmap_ensemble
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.service.images import synthetic_images
from benchmarks.service.load import Load, Part, closed_loop, parameters, post_form, short_gc_pauses
from benchmarks.service.server import (
    TERMINATE_TIMEOUT_S,
    Server,
    eulerlora_server,
    memory,
    paused,
    server_process,
)
from benchmarks.timing import Work, alternating_seconds, in_new_process, peak_growth
from benchmarks.workload import FULL, SMALL, NetworkSizes, Sizes, random_network
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime
from eulerlora.settings import Draw
from eulerlora_client.contract.sampling import Mode

CPU = torch.device("cpu")
MEMBERS = 8
OUR_METHOD = "ours"
METHODS = {
    OUR_METHOD: "EulerLoRA, mode det, one batch of rows",
    "lora-ensemble": "LoRA-Ensemble, as its published code computes",
    "peft-mixed-batch": "PEFT, mixed batch by `adapter_names`",
    "peft-set-adapter": "PEFT, `set_adapter` loop",
    "vmap": "`torch.func.vmap` over LoRA modules, frozen weights shared",
    "loop": "ordinary LoRA modules, one pass a member",
}
HOST = "127.0.0.1"
IMAGES = 32
OUR_SERVER = "eulerlora serve"
CLIENT_COUNTS = (1, 2, 4, 8, 16)
PEER_GRACE_S = 1.0  # for LitServe and Ray
TOLERANCE = 1e-4  # of probabilities; ours have six digits

Answers = Callable[[Tensor], Tensor]
"""Images (n, 3, image_size, image_size) -> logits; their shape differs by method."""

Loads = Mapping[int, Sequence[Load]]
"""The runs by number of clients."""


@dataclass(frozen=True)
class MethodCost:
    """Median seconds for one image and for `Sizes.images`, ratios to ours, memory in bytes."""

    one_image: float
    one_image_ratio: float
    images: float
    images_ratio: float
    memory: int


@dataclass(frozen=True)
class PeerServer:
    """A server to compare with.

    arguments: of Python; the port follows. ready_path: returns 200 once it is ready. grace_s: from
    SIGTERM to SIGKILL, for one that does not stop all processes on SIGTERM.
    """

    arguments: Sequence[str]
    ready_path: str
    grace_s: float = TERMINATE_TIMEOUT_S

    def running(self, packages: Path | None = None) -> AbstractContextManager[Server]:
        """Runs the server on a free port while the block runs.

        packages: a folder that precedes the installed packages.
        """
        with socket.create_server((HOST, 0)) as free:
            port = int(free.getsockname()[1])
        command = ["-m", *self.arguments, str(port)]
        environment = {} if packages is None else {"PYTHONPATH": str(packages)}
        return server_process(command, self.ready_path, port, self.grace_s, environment)


PROGRAMS = "benchmarks.service"
BENTOML = "BentoML, adaptive batches of at most 8, 2 workers"
BENTOML_ARGUMENTS = ["bentoml", "serve", f"{PROGRAMS}.bentoml_server:BatchedModel", "--host", HOST]
PEERS = {
    "a plain FastAPI route": PeerServer([f"{PROGRAMS}.references"], "/readyz"),
    "LitServe, batches of 8, 5 ms, 2 workers": PeerServer(
        [f"{PROGRAMS}.litserve_server"], "/health", PEER_GRACE_S
    ),
    "Ray Serve, batches of 8, 5 ms, 2 replicas": PeerServer(
        [f"{PROGRAMS}.ray_server"], "/readyz", PEER_GRACE_S
    ),
    BENTOML: PeerServer([*BENTOML_ARGUMENTS, "--port"], "/readyz"),
}


def servers_of(bentoml: Path | None) -> dict[str, Callable[[], AbstractContextManager[Server]]]:
    """Returns what runs each server. bentoml: folder of its packages; None leaves it out."""
    servers: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        OUR_SERVER: eulerlora_server,
        **{name: peer.running for name, peer in PEERS.items() if name != BENTOML},
    }
    if bentoml is not None:
        servers[BENTOML] = partial(PEERS[BENTOML].running, bentoml)
    return servers


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each method; by default 15.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Loads of each server."
)
@click.option("--responses", type=click.IntRange(1), default=160, show_default=True)
@click.option("--clients", type=click.Choice(list(map(str, CLIENT_COUNTS))), default="8")
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True)
@click.option(
    "--bentoml",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure BentoML too; FOLDER of `pip install --target FOLDER bentoml`, whose packages "
    "conflict with ours.",
)
@click.option("--methods/--no-methods", default=True, help="Measure methods.")
@click.option("--servers/--no-servers", default=True, help="Measure servers.")
def main(
    small: bool,
    repeats: int | None,
    runs: int,
    responses: int,
    clients: str,
    mode: Mode,
    bentoml: Path | None,
    methods: bool,
    servers: bool,
) -> None:
    """Measure methods and servers on the CPU and print their table."""
    if methods:
        sizes = SMALL if small else FULL
        if repeats is not None:
            sizes = sizes.model_copy(update={"repeats": repeats})
        click.echo(methods_table(method_costs(sizes)))
    if servers:
        counts, responses = ((1, 8), 16) if small else (CLIENT_COUNTS, responses)
        loads, memories = server_loads(
            servers_of(bentoml), mode, counts, 1 if small else runs, responses
        )
        click.echo(f"mode {mode}\n\n{servers_table(loads, memories, int(clients))}")


def method_costs(sizes: Sizes) -> dict[str, MethodCost]:
    """Returns the costs of all methods, measured in alternation."""
    large = eight_members(sizes.large)
    network = random_network(large)
    answers = [build(method, network) for method in METHODS]
    times = []
    for count in (1, sizes.images):
        images = random_images(large, count)
        works: list[Work] = [partial(answer, images) for answer in answers]
        times.append(alternating_seconds(works, sizes.repeats, sizes.warmups, CPU))
    return {
        method: MethodCost(
            one_image=median(single),
            one_image_ratio=_ratio(single, times[0][0]),
            images=median(several),
            images_ratio=_ratio(several, times[1][0]),
            memory=in_new_process(method_memory, method, sizes),
        )
        for method, single, several in zip(METHODS, *times, strict=True)
    }


def eight_members(sizes: NetworkSizes) -> NetworkSizes:
    """Returns the sizes with an adapter for each member."""
    adapters = sizes.adapters.model_copy(update={"adapters": MEMBERS})
    return sizes.model_copy(update={"adapters": adapters})


def random_images(sizes: NetworkSizes, count: int) -> Tensor:
    """Returns (count, 3, image_size, image_size) in [0, 1]."""
    side = sizes.backbone.image_size
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def build(method: str, network: AdaptedVisionTransformer) -> Answers:
    """Returns the answers of the network's adapters by one of `METHODS`."""
    if method == OUR_METHOD:
        return _ours(network)
    if method.startswith("peft"):
        peft = PeftVisionTransformer(network)
        return peft.mixed_batch if method == "peft-mixed-batch" else peft.adapter_by_adapter
    members = ordinary_members(network)
    if method == "lora-ensemble":
        return LoRAEnsemble(members)
    plain = torch.ones(MEMBERS, 1, len(network.blocks), 4, network.settings.rank)
    if method == "loop":
        return lambda images: naive_logits(members, images, plain)
    ensemble = vmap_ensemble(members, samples=1)
    return lambda images: ensemble(images, plain)


def _ours(network: AdaptedVisionTransformer) -> Answers:
    runtime = Runtime(network, CPU)

    @torch.inference_mode()
    def logits(images: Tensor) -> Tensor:
        rows = Rows.of([1] * len(images), network.settings.adapters)
        return runtime(images, rows, network.draw_rows([Draw()] * len(images)).to(images))

    return logits


def method_memory(method: str, sizes: Sizes) -> int:
    """Returns the peak memory in bytes while a method is built and answers a batch."""
    large = eight_members(sizes.large)
    network, images = random_network(large), random_images(large, sizes.images)
    _ours(network)(images)  # what torch allocates once
    return peak_growth(lambda: build(method, network)(images))


def _ratio(seconds: list[float], ours: list[float]) -> float:
    return median(theirs / own for theirs, own in zip(seconds, ours, strict=True))


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
    starts: Mapping[str, Callable[[], AbstractContextManager[Server]]],
    mode: Mode,
    counts: Sequence[int],
    runs: int,
    responses: int,
) -> tuple[dict[str, Loads], dict[str, int]]:
    """Returns the alternating loads of every server, and its memory (PSS) after them in bytes.

    Raises ClickException for a server whose probabilities differ from ours.
    """
    images = synthetic_images(IMAGES)
    requests = {name: [request_of(name, image, mode) for image in images] for name in starts}
    loads: dict[str, dict[int, list[Load]]] = {
        name: {count: [] for count in counts} for name in starts
    }
    with short_gc_pauses(), ExitStack() as running:
        servers = {name: running.enter_context(start()) for name, start in starts.items()}
        ours = probabilities(servers[OUR_SERVER], requests[OUR_SERVER][0])
        for name, server in servers.items():
            theirs = probabilities(server, requests[name][0])
            difference = max(abs(ours[label] - theirs[label]) for label in ours)
            if difference > TOLERANCE:
                raise click.ClickException(f"{name}: a probability differs by {difference:.2g}")
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


def request_of(server: str, image: bytes, mode: Mode) -> bytes:
    """Returns a form; the peers take the mode as a field of it, BentoML as a part of the path."""
    file = Part("file", image, "a.jpg", "image/jpeg")
    if server == OUR_SERVER:
        return post_form([file], parameters(mode))
    request = post_form([file, Part("mode", mode.encode())])
    is_path = server == BENTOML and mode == "det"
    return request.replace(b"/predict", b"/predict/det", 1) if is_path else request


def probabilities(server: Server, request: bytes) -> dict[str, float]:
    """Returns the probabilities in the answer to a request; BentoML's is a list with one entry."""
    (exchange,) = closed_loop(server.port, [request], clients=1, responses=1).successful
    assert exchange.response is not None
    answer = json.loads(exchange.response.body)
    answered: dict[str, float] = (answer[0] if isinstance(answer, list) else answer)[
        "probabilities"
    ]
    return answered


def servers_table(loads: Mapping[str, Loads], sizes: Mapping[str, int], clients: int) -> str:
    """Returns the table of the servers. clients: of ours, whose p99 is the limit."""
    limit = median(map(p99, loads[OUR_SERVER][clients]))
    lines = [
        f"| server | a lone request, p50 | answers/s, {clients} clients | p99 | "
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
