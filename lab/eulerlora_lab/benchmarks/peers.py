"""Other methods and servers beside ours: `python -m eulerlora_lab.benchmarks.peers [--small]`.

The methods answer the same images with eight members; every one is measured in alternation with
ours, and its memory in a process of its own: the peak beyond the network. The servers have the same
model and library, and in float32 must give the same probabilities; their loads alternate too. Ours
has two more rows: in the precision that it chooses (`--precision auto`), and with `samples=auto`.
Half load is a Poisson load at half of the server's own highest rate.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import click
import torch
from torch import Tensor

from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import TorchRuntime
from eulerlora.settings import Draw
from eulerlora_contract.printable import markdown_table
from eulerlora_contract.sampling import Mode
from eulerlora_lab.benchmarks.baselines.lora_ensemble import LoRAEnsemble
from eulerlora_lab.benchmarks.baselines.naive import naive_logits, ordinary_members, vmap_ensemble
from eulerlora_lab.benchmarks.baselines.peft import PeftVisionTransformer
from eulerlora_lab.benchmarks.service.images import request_images
from eulerlora_lab.benchmarks.service.load import (
    Exchange,
    MeasuredLoad,
    closed_loop,
    parameters,
    percentile,
    post_form,
    short_gc_pauses,
)
from eulerlora_lab.benchmarks.service.overload import TIMEOUT_S, poisson_load
from eulerlora_lab.benchmarks.service.server import (
    TERMINATE_TIMEOUT_S,
    ServerProcess,
    eulerlora_server,
    free_port,
    memory,
    paused,
    server_process,
)
from eulerlora_lab.benchmarks.timing import Work, alternating_seconds, in_new_process, peak_growth
from eulerlora_lab.benchmarks.workload import FULL, SMALL, NetworkSizes, Sizes, random_network

_CPU = torch.device("cpu")
_MEMBERS = 8
_OUR_METHOD = "ours"
_METHODS = {
    _OUR_METHOD: "EulerLoRA, mode det, one batch of rows",
    "lora-ensemble": "LoRA-Ensemble, as its published code computes",
    "peft-mixed-batch": "PEFT, mixed batch by `adapter_names`",
    "peft-set-adapter": "PEFT, `set_adapter` loop",
    "vmap": "`torch.func.vmap` over LoRA modules, frozen weights shared",
    "loop": "ordinary LoRA modules, one pass a member",
}
_IMAGES = 32
_OUR_SERVER = "eulerlora serve"
_CHOSEN_PRECISION = f"{_OUR_SERVER}, --precision auto"
_AUTO_SAMPLES = f"{_OUR_SERVER}, samples=auto"
_LIMIT_S = 0.5
_HALF_LOAD_S = 10.0
_PEER_GRACE_S = 1.0  # for LitServe and Ray
_TOLERANCE = 1e-4  # of probabilities; ours have six digits

RequestMode = Literal["det", "stoch", "mixed"]

_Answers = Callable[[Tensor], Tensor]
"""Images (n, 3, image_size, image_size) -> logits; their shape differs by method."""

_Loads = Mapping[int, Sequence[MeasuredLoad]]
"""The runs by number of clients."""

_StartServer = Callable[[], AbstractContextManager[ServerProcess]]


@dataclass(frozen=True)
class _MethodCost:
    """Median seconds for one image and for `Sizes.images`, ratios to ours, memory in bytes."""

    one_image: float
    one_image_ratio: float
    images: float
    images_ratio: float
    memory: int


@dataclass(frozen=True)
class _PeerServer:
    """A server to compare with.

    Attributes:
        arguments: Of Python; the port follows.
        ready_path: Returns 200 once it is ready.
        grace_s: From SIGTERM to SIGKILL, for one that does not stop all processes on SIGTERM.
    """

    arguments: Sequence[str]
    ready_path: str
    grace_s: float = TERMINATE_TIMEOUT_S

    def running(self, packages: Path | None = None) -> AbstractContextManager[ServerProcess]:
        """Runs the server on a free port while the block runs.

        packages: a folder that precedes the installed packages.
        """
        port = free_port()
        command = ["-m", *self.arguments, str(port)]
        environment = {} if packages is None else {"PYTHONPATH": str(packages)}
        return server_process(command, port, self.ready_path, self.grace_s, environment)


_PROGRAMS = "eulerlora_lab.benchmarks.service"
_BENTOML = "BentoML, adaptive batches of at most 8, 2 workers"
_PEERS = {
    "a plain FastAPI route": _PeerServer([f"{_PROGRAMS}.references"], "/readyz"),
    "LitServe, batches of 8, 5 ms, 2 workers": _PeerServer(
        [f"{_PROGRAMS}.litserve_server"], "/health", _PEER_GRACE_S
    ),
    "Ray Serve, batches of 8, 5 ms, 2 replicas": _PeerServer(
        [f"{_PROGRAMS}.ray_server"], "/readyz", _PEER_GRACE_S
    ),
    _BENTOML: _PeerServer(
        f"bentoml serve {_PROGRAMS}.bentoml_server:BatchedModel --host 127.0.0.1 --port".split(),
        "/readyz",
    ),
}


def _servers_of(bentoml: Path | None) -> dict[str, _StartServer]:
    """What runs each server; without the folder of BentoML's packages it is left out."""
    servers: dict[str, _StartServer] = {
        _OUR_SERVER: eulerlora_server,
        _CHOSEN_PRECISION: partial(eulerlora_server, ["--precision", "auto"]),
        _AUTO_SAMPLES: eulerlora_server,
        **{name: peer.running for name, peer in _PEERS.items() if name != _BENTOML},
    }
    if bentoml is not None:
        servers[_BENTOML] = partial(_PEERS[_BENTOML].running, bentoml)
    return servers


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each method; by default 15.")
@click.option(
    "--runs", type=click.IntRange(1), default=3, show_default=True, help="Loads of each server."
)
@click.option("--responses", type=click.IntRange(1), default=160, show_default=True)
@click.option(
    "--mode", type=click.Choice(get_args(RequestMode)), default="mixed", show_default=True
)
@click.option(
    "--bentoml",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure BentoML too; FOLDER of `pip install --target FOLDER bentoml`, whose packages "
    "conflict with ours.",
)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"Send the first {_IMAGES} files of this folder instead of synthetic images.",
)
@click.option("--methods/--no-methods", default=True, help="Measure methods.")
@click.option("--servers/--no-servers", default=True, help="Measure servers.")
def main(
    small: bool,
    repeats: int | None,
    runs: int,
    responses: int,
    mode: RequestMode,
    bentoml: Path | None,
    images: Path | None,
    methods: bool,
    servers: bool,
) -> None:
    """Measure methods and servers on the CPU and print their table."""
    if methods:
        sizes = SMALL if small else FULL
        if repeats is not None:
            sizes = sizes.model_copy(update={"repeats": repeats})
        click.echo(_methods_table(_method_costs(sizes)))
    if servers:
        counts, responses = ((1, 8), 16) if small else ((1, 2, 4, 8), responses)
        runs = 1 if small else runs
        costs = _server_costs(_servers_of(bentoml), mode, counts, runs, responses, images)
        click.echo(f"mode {mode}\n\n{_servers_table(costs)}")


def _method_costs(sizes: Sizes) -> dict[str, _MethodCost]:
    large = _eight_members(sizes.large)
    network = random_network(large)
    answers = [_build(method, network) for method in _METHODS]
    times = []
    for count in (1, sizes.images):
        images = _random_images(large, count)
        works: list[Work] = [partial(answer, images) for answer in answers]
        times.append(alternating_seconds(works, sizes.repeats, sizes.warmups, _CPU))
    return {
        method: _MethodCost(
            one_image=median(single),
            one_image_ratio=_ratio(single, times[0][0]),
            images=median(several),
            images_ratio=_ratio(several, times[1][0]),
            memory=in_new_process(_method_memory, method, sizes),
        )
        for method, single, several in zip(_METHODS, *times, strict=True)
    }


def _eight_members(sizes: NetworkSizes) -> NetworkSizes:
    adapters = sizes.adapters.model_copy(update={"adapters": _MEMBERS})
    return sizes.model_copy(update={"adapters": adapters})


def _random_images(sizes: NetworkSizes, count: int) -> Tensor:
    side = sizes.backbone.image_size
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def _build(method: str, network: AdaptedVisionTransformer) -> _Answers:
    if method == _OUR_METHOD:
        return _ours(network)
    if method.startswith("peft"):
        peft = PeftVisionTransformer(network)
        return peft.mixed_batch if method == "peft-mixed-batch" else peft.adapter_by_adapter
    members = ordinary_members(network)
    if method == "lora-ensemble":
        return LoRAEnsemble(members)
    plain = torch.ones(_MEMBERS, 1, len(network.blocks), 4, network.settings.rank)
    if method == "loop":
        return lambda images: naive_logits(members, images, plain)
    ensemble = vmap_ensemble(members, samples=1)
    return lambda images: ensemble(images, plain)


def _ours(network: AdaptedVisionTransformer) -> _Answers:
    runtime = TorchRuntime(network, _CPU)

    @torch.inference_mode()
    def logits(images: Tensor) -> Tensor:
        rows = Rows.of([1] * len(images), network.settings.adapters)
        return runtime(images, rows, network.draw_rows([Draw()] * len(images)).to(images))

    return logits


def _method_memory(method: str, sizes: Sizes) -> int:
    """Peak memory in bytes while a method is built and answers a batch."""
    large = _eight_members(sizes.large)
    network, images = random_network(large), _random_images(large, sizes.images)
    _ours(network)(images)  # what torch allocates once
    return peak_growth(lambda: _build(method, network)(images))


def _ratio(seconds: list[float], ours: list[float]) -> float:
    return median(theirs / own for theirs, own in zip(seconds, ours, strict=True))


def _methods_table(costs: Mapping[str, _MethodCost]) -> str:
    rows = [
        [
            _METHODS[name], f"{1000 * cost.one_image:.1f} ms", f"{cost.one_image_ratio:.2f}",
            f"{1000 * cost.images:.1f} ms", f"{cost.images_ratio:.2f}",
            f"{cost.memory / 2**20:.0f} MiB",
        ]
        for name, cost in costs.items()
    ]  # fmt: skip
    head = ["eight members", "1 image", "to ours", "8 images", "to ours", "memory"]
    return markdown_table(head, rows)


@dataclass(frozen=True)
class _ServerCost:
    """Closed loops by number of clients, answers at half load, and memory (PSS) in bytes."""

    loads: _Loads
    half_load: Sequence[Exchange]
    memory: int

    @property
    def rate(self) -> float:
        """The highest median rate among the numbers of clients, in answers/s."""
        return max(median(load.rate for load in runs) for runs in self.loads.values())


def _server_costs(
    starts: Mapping[str, _StartServer],
    mode: RequestMode,
    counts: Sequence[int],
    runs: int,
    responses: int,
    images: Path | None,
) -> dict[str, _ServerCost]:
    """The costs of every server, whose loads alternate.

    images: folder of files to send instead of synthetic images.

    Raises:
        ClickException: For a server whose probabilities differ from ours.
    """
    files = request_images(_IMAGES, images)
    modes: Sequence[Mode] = ("det", "stoch") if mode == "mixed" else (mode,)
    requests = {
        name: [_request_of(name, image, one) for image, one in zip(files, cycle(modes))]
        for name in starts
    }
    loads: dict[str, dict[int, list[MeasuredLoad]]] = {
        name: {count: [] for count in counts} for name in starts
    }
    # A health check fails in a server that is suspended.
    os.environ["EULERLORA_SERVE_LIFE__PROBE_INTERVAL_S"] = "86400"
    with short_gc_pauses(), ExitStack() as running:
        servers = {name: running.enter_context(start()) for name, start in starts.items()}
        _check_probabilities(servers, requests)
        for run in range(-1, runs):  # the first warms up
            for name, server in servers.items():
                with _only(server, servers.values()):
                    for count in counts:
                        load = closed_loop(server.port, requests[name], count, responses)
                        click.echo(f"{name}, {count} clients: {load.rate:.1f} answers/s", err=True)
                        if run >= 0:
                            loads[name][count].append(load)
        costs = {}
        for name, server in servers.items():
            cost = _ServerCost(loads[name], (), memory(server.pid))
            with _only(server, servers.values()):
                half = poisson_load(
                    server.port,
                    requests[name],
                    cost.rate / 2,
                    _HALF_LOAD_S,
                    TIMEOUT_S,
                    lambda: None,
                )
                costs[name] = replace(cost, half_load=asyncio.run(half))
    return costs


@contextmanager
def _only(server: ServerProcess, servers: Iterable[ServerProcess]) -> Iterator[None]:
    """Suspends the other servers while the block runs."""
    with ExitStack() as others:
        for other in servers:
            if other is not server:
                others.enter_context(paused(other.pid))
        yield


def _check_probabilities(
    servers: Mapping[str, ServerProcess], requests: Mapping[str, Sequence[bytes]]
) -> None:
    ours = _probabilities(servers[_OUR_SERVER], requests[_OUR_SERVER][0])
    for name, server in servers.items():
        if name in (_CHOSEN_PRECISION, _AUTO_SAMPLES):
            continue
        theirs = _probabilities(server, requests[name][0])
        difference = max(abs(ours[label] - theirs[label]) for label in ours)
        if difference > _TOLERANCE:
            raise click.ClickException(f"{name}: a probability differs by {difference:.2g}")


def _request_of(server: str, image: bytes, mode: Mode) -> bytes:
    """The peers take the mode as a field of the form, BentoML as a part of the path."""
    files = [("file", ("a.jpg", image, "image/jpeg"))]
    if server == _AUTO_SAMPLES and mode == "stoch":
        return post_form(files, parameters={"mode": mode, "samples": "auto"})
    if server.startswith(_OUR_SERVER):
        return post_form(files, parameters=parameters(mode))
    path = "/predict/det" if server == _BENTOML and mode == "det" else "/predict"
    return post_form(files, {"mode": mode}, path=path)


def _probabilities(server: ServerProcess, request: bytes) -> dict[str, float]:
    """BentoML's answer is a list with one entry."""
    (exchange,) = closed_loop(server.port, [request], clients=1, responses=1).successful
    assert exchange.response is not None
    answer = json.loads(exchange.response.body)
    answered: dict[str, float] = (answer[0] if isinstance(answer, list) else answer)[
        "probabilities"
    ]
    return answered


def _servers_table(costs: Mapping[str, _ServerCost]) -> str:
    clients = max(costs[_OUR_SERVER].loads)
    head = [
        "server", "a lone request, p50", f"answers/s, {clients} clients", "p99",
        f"answers/s with a p99 of {1000 * _LIMIT_S:.0f} ms", "p50 and p99 at half load", "memory",
    ]  # fmt: skip
    rows = []
    for name, cost in costs.items():
        lone = median(percentile(load.exchanges, 50) for load in cost.loads[min(cost.loads)])
        within = _rate_within(cost.loads, _LIMIT_S)
        full = cost.loads[clients]
        half = [percentile(cost.half_load, percent) for percent in (50, 99)]
        cells = [
            name,
            f"{1000 * lone:.1f} ms",
            f"{median(load.rate for load in full):.1f}",
            f"{1000 * median(map(p99, full)):.0f} ms",
            "none" if within is None else f"{within:.1f}",
            f"{1000 * half[0]:.0f} and {1000 * half[1]:.0f} ms",
            f"{cost.memory / 2**20:.0f} MiB",
        ]
        rows.append(cells)
    return markdown_table(head, rows)


def _rate_within(loads: _Loads, limit_s: float) -> float | None:
    """The highest median rate with a median p99 within a limit; None if there is none."""
    rates = [
        median(load.rate for load in runs)
        for runs in loads.values()
        if median(map(p99, runs)) <= limit_s
    ]
    return max(rates, default=None)


def p99(load: MeasuredLoad) -> float:
    return percentile(load.exchanges, 99)


if __name__ == "__main__":
    main()
