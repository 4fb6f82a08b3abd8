"""The programs of the benchmarks, in their smallest form."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from click import Command
from click.testing import CliRunner
from click.testing import Result as Ended
from torch import Tensor

from eulerlora_lab.benchmarks import cpu, gpu, peers, training_step
from eulerlora_lab.benchmarks.results import Result
from eulerlora_lab.benchmarks.service import program
from tests.conftest import needs_openvino

Printed = Callable[[Command, list[str]], list[Result]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """The results that a program prints: (command, arguments) -> results."""

    def run(command: Command, arguments: list[str]) -> list[Result]:
        results: list[Result] = []
        row = Result.row
        monkeypatch.setattr(Result, "row", lambda result: results.append(result) or row(result))
        done = CliRunner().invoke(command, ["--small", *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return results

    return run


@pytest.fixture
def gpu_program(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Runs the program for GPUs on a CPU: (names of measurements) -> its end."""
    monkeypatch.setattr(training_step, "in_new_process", lambda *_: 1)  # test_training_step.py
    monkeypatch.setattr(gpu, "device_rate", lambda *_: [])  # needs a server

    def run(*only: str) -> Ended:
        chosen = [word for name in only for word in ("--only", name)]
        return CliRunner().invoke(gpu.main, ["--device", "cpu", "--small", *chosen])

    return run


def test_the_gpu_program_measures_everything_on_a_cpu_too(gpu_program) -> None:
    done = gpu_program()
    assert done.exit_code == 0, done.output
    _, _, *rows = done.output.splitlines()
    names = [row.split(" | ")[0].strip("| ") for row in rows]
    assert len(names) == len(set(names))
    assert names[0] == "first passes of all row counts, bfloat16, plain"
    for kind in ("plain", "recorded", "compiled"):
        assert (
            sum(name.startswith("passes of ") and name.endswith(kind) for name in names)
            == 4
            + (
                kind == "compiled"  # a plain ViT, compiled
            )
            * 4
        )
    assert sum("utilisation" in name for name in names) == 4 + (find_spec("timm") is not None)
    assert sum("trajectories, 1 image" in name for name in names) == 2


def test_a_measurement_that_fails_has_its_error_in_a_row_and_the_next_one_runs(
    gpu_program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler\nfor this device")

    monkeypatch.setattr(torch, "compile", fail)
    done = gpu_program("backbone", "latency")
    assert done.exit_code == 1
    failed, latency, error = done.output.splitlines()[2:]
    assert failed.startswith(
        "| backbone |  | **failed** | RuntimeError: no compiler for this device"
    )
    assert "4 trajectories / 1 trajectory" in latency
    assert error == "Error: failed: backbone"


def test_the_cpu_program_measures_what_is_asked_for(printed) -> None:
    results = printed(cpu.main, ["--only", "naive-float32", "--only", "mixed-modes"])
    assert [result.name.split(",")[0] for result in results] == [
        "4 trajectories", "compact backbone",
    ]  # fmt: skip


@needs_openvino
def test_the_cpu_program_compares_runtimes(printed) -> None:
    (result,) = printed(cpu.main, ["--only", "runtime-stoch-1-float32"])
    assert "OpenVINO, float32" in result.ours
    assert "torch, float32" in result.reference
    assert result.value > 0


@pytest.mark.parametrize(
    "wrong", [lambda logits: logits.roll(1, -1), lambda logits: logits * torch.nan]
)
def test_an_implementation_that_is_wrong_is_not_timed(wrong, gpu_program, monkeypatch) -> None:
    original = gpu.naive_logits
    monkeypatch.setattr(gpu, "naive_logits", lambda *inputs: wrong(original(*inputs)))
    done = gpu_program("naive-float32")
    assert done.exit_code == 1
    assert "ArithmeticError: a probability differs by" in done.output
    assert " ms" not in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error() -> None:
    assert CliRunner().invoke(gpu.main, []).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measurement", "rows"),
    [
        ("throughput", 4),
        ("as-started", 2),
        ("triage", 1),
        ("lone-request", 4),
        ("front", 6),
        ("overload", 3),
        ("attackers", 24),
        ("busy-connections", 3),
    ],
)
def test_every_measurement_of_the_service_gives_its_results(
    measurement, rows, printed, monkeypatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    results = printed(program.main, ["--only", measurement])
    assert len({result.name for result in results}) == rows


def test_all_methods_answer_alike_and_have_a_row_with_their_ratios_to_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    milliseconds = {1: [1, 3, 4, 5, 2, 6], 2: [4, 5, 6, 7, 10, 8]}

    def timed(works: list[Callable[[], Tensor]], *_: object) -> list[list[float]]:
        first, *others = logits = [work() for work in works]
        images = len(first) // 8
        assert first.shape == (images * 8, 3)
        assert not torch.allclose(first[0], first[1], atol=1e-4)
        for other in others:
            torch.testing.assert_close(other.reshape_as(first), first, rtol=1e-4, atol=1e-5)
        assert len(logits) == len(milliseconds[images])
        return [[value / 1000] * 3 for value in milliseconds[images]]

    monkeypatch.setattr(peers, "alternating_seconds", timed)
    monkeypatch.setattr(peers, "in_new_process", lambda _, method, _sizes: 2**20 * len(method))
    done = CliRunner().invoke(peers.main, ["--small", "--no-servers"], catch_exceptions=False)
    table = [line for line in done.output.splitlines() if line.startswith("|")]
    rows = [line.split(" | ", 1) for line in table[-6:]]
    assert len(rows) == len({name for name, _ in rows}) == 6
    assert rows[0][1] == "1.0 ms | 1.00 | 4.0 ms | 1.00 | 4 MiB |"
    assert rows[4][1] == "2.0 ms | 2.00 | 10.0 ms | 2.50 | 4 MiB |"


def answered(seconds: float, probability: float = 0.5) -> SimpleNamespace:
    body = json.dumps({"probabilities": {"a": probability, "b": 1 - probability}})
    return SimpleNamespace(status=200, seconds=seconds, response=SimpleNamespace(body=body))


def load(rate: float, seconds: float) -> SimpleNamespace:
    return SimpleNamespace(
        rate=rate, exchanges=[answered(seconds)] * 10, successful=[answered(seconds)]
    )


OURS = "eulerlora serve"
SLOWER = "a plain FastAPI route"
VARIED = "LitServe, batches of 8, 5 ms, 2 workers"
LATE = "Ray Serve, batches of 8, 5 ms, 2 replicas"
PROGRAMS = ["", "references", "litserve_server", "ray_server"]
LOADS = {
    OURS: {1: [load(50, 0.02)] * 2, 8: [load(100, 0.1)] * 2},
    SLOWER: {1: [load(40, 0.025)] * 2, 8: [load(90, 0.6)] * 2},
    VARIED: {1: [load(50, 0.02)] * 2, 4: [load(90, 0.4), load(80, 0.6)], 8: [load(70, 2.0)] * 2},
    LATE: {1: [load(50, 0.7)] * 2, 8: [load(60, 0.8)] * 2},
}
"""By server, the two runs of a number of clients."""
Compared = Callable[..., tuple[Ended, list[tuple[str, float]]]]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Runs the program on servers with given loads; returns its end and the half loads by name.

    The arguments are probabilities that differ from 0.5, by name.
    """
    names = list(LOADS)
    numbers: dict[tuple[int, int], int] = {}
    half_loads: list[tuple[str, float]] = []

    def run(probabilities: Mapping[str, float] = {}) -> tuple[Ended, list[tuple[str, float]]]:
        def closed_loop(port: int, _: object, clients: int, responses: int) -> SimpleNamespace:
            name = names[port]
            if responses == 1:
                answer = answered(0.01, probabilities.get(name, 0.5))
                return SimpleNamespace(successful=[answer])
            calls = numbers[port, clients] = numbers.get((port, clients), -1) + 1
            number = calls if port else calls // 3  # three rows are of our server
            runs = LOADS[name].get(clients, LOADS[name][1])
            return load(1000, 0.001) if number == 0 else runs[number - 1]  # the first warms up

        async def poisson_load(port: int, _: object, rate: float, *__: object) -> list[object]:
            half_loads.append((names[port], rate))
            return load(50, 0.03).exchanges

        def server_process(command: Sequence[str], *_: object) -> object:
            port = PROGRAMS.index(command[1].rpartition(".")[2])
            return nullcontext(SimpleNamespace(port=port, pid=port))

        replaced = {
            "closed_loop": closed_loop,
            "poisson_load": poisson_load,
            "memory": lambda pid: 2**30 * (pid + 1),
            "paused": lambda _: nullcontext(),
            "eulerlora_server": lambda *_, **__: server_process(["", ""]),
            "server_process": server_process,
        }
        for name, value in replaced.items():
            monkeypatch.setattr(peers, name, value)
        monkeypatch.setenv("EULERLORA_SERVE_LIFE__PROBE_INTERVAL_S", "1")  # restored afterwards
        arguments = ["--no-methods", "--runs", "2"]
        return CliRunner().invoke(peers.main, arguments), half_loads

    return run


def test_the_table_states_what_a_server_gives_at_full_and_at_half_load(servers) -> None:
    done, half_loads = servers()
    assert done.exit_code == 0, done.output
    rows = {line.split(" | ")[0].strip("| "): line for line in done.output.splitlines()}
    end = "30 and 30 ms | {} MiB |"
    assert rows[OURS].endswith(f"| 20.0 ms | 100.0 | 100 ms | 100.0 | {end.format(1024)}")
    assert rows[SLOWER].endswith(f"| 25.0 ms | 90.0 | 600 ms | 40.0 | {end.format(2048)}")
    assert "| 85.0 |" in rows[VARIED]  # the median p99 of 4 clients is within the limit
    assert "| none |" in rows[LATE]
    assert dict(half_loads)[SLOWER] == 45


def test_a_server_with_other_probabilities_ends_the_comparison(servers) -> None:
    done, _ = servers({SLOWER: 0.51})
    assert done.exit_code == 1
    assert f"{SLOWER}: a probability differs by 0.01" in done.output
