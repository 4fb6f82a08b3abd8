"""The programs of the benchmarks, in their smallest form."""

from collections.abc import Callable

import pytest
import torch
from click import Command
from click.testing import CliRunner

from eulerlora_lab.benchmarks import cpu, gpu, peers, training_step
from eulerlora_lab.benchmarks.peers import METHODS, OUR_SERVER, MethodCost, ServerCost
from eulerlora_lab.benchmarks.results import Result, at_least
from eulerlora_lab.benchmarks.service import program
from eulerlora_lab.benchmarks.service.load import Exchange, Load, Response
from eulerlora_lab.benchmarks.workload import SMALL

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


def test_the_gpu_program_measures_everything_on_a_cpu_too(printed, monkeypatch) -> None:
    monkeypatch.setattr(training_step, "peak_bytes", lambda *_: 1)  # test_training_step.py
    monkeypatch.setattr(gpu, "device_rate", lambda *_: [])  # needs a server
    results = printed(gpu.main, ["--device", "cpu"])
    assert len(results) == len({result.name for result in results})
    ratios = [result for result in results if result.unit == "ratio"]
    assert len(ratios) == len(cpu.COMPARISONS) + 2  # and the latency and the matrix product
    assert min(result.value for result in results) > 0
    readings = {result.name: result for result in results if result.unit != "ratio"}
    graphs = readings["graphs, bfloat16, compiled"]
    assert graphs.target == at_least(graphs.value)
    assert [reading.unit for reading in readings.values()].count("rows/s") == graphs.value


def test_the_cpu_program_measures_what_is_asked_for(printed) -> None:
    results = printed(cpu.main, ["--only", "naive-float32", "--only", "mixed-modes"])
    assert [result.name.split(",")[0] for result in results] == [
        "4 trajectories", "compact backbone",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [lambda logits: logits.roll(1, -1), lambda logits: logits * torch.nan]
)
def test_nothing_is_timed_if_an_implementation_is_wrong(wrong, monkeypatch) -> None:
    original = gpu.naive_logits
    monkeypatch.setattr(gpu, "naive_logits", lambda *inputs: wrong(original(*inputs)))
    monkeypatch.setattr(gpu, "report", lambda _: pytest.fail("it was timed"))
    completed = CliRunner().invoke(gpu.main, ["--device", "cpu", "--small"])
    assert completed.exit_code == 1
    assert completed.output.endswith("wrong probabilities: float32, naive loop\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error() -> None:
    assert CliRunner().invoke(gpu.main, []).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("measurement", "rows"),
    [
        ("throughput", 4),
        ("triage", 1),
        ("lone-request", 4),
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


def load(rate: float, seconds: float) -> Load:
    answered = Exchange(0, seconds, Response(200, {}, b""))
    return Load(10 / rate, [answered] * 10)


def test_every_method_has_a_row_with_its_ratio_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "in_new_process", lambda _, method, _sizes: 2**20 * len(method))
    costs = peers.method_costs(SMALL)
    assert costs["ours"].one_image_ratio == costs["ours"].images_ratio == 1
    assert all(cost.one_image > 0 and cost.images > 0 for cost in costs.values())
    table = peers.methods_table(costs | {"vmap": MethodCost(0.002, 2.0, 0.01, 2.5, 7 * 2**20)})
    assert "| 2.0 ms | 2.00 | 10.0 ms | 2.50 | 7 MiB |" in table
    assert table.count("\n") == len(METHODS) + 1


def test_the_rate_at_equal_p99_is_the_highest_within_the_limit() -> None:
    loads = {1: [load(50, 0.02)], 4: [load(90, 0.05), load(80, 0.06)], 16: [load(120, 0.4)]}
    assert peers.rate_within(loads, 0.06) == 85
    assert peers.rate_within(loads, 0.5) == 120
    assert peers.rate_within(loads, 0.01) is None


def test_the_table_states_what_a_server_gives_at_full_and_at_half_load() -> None:
    ours = {1: [load(50, 0.02)], 8: [load(100, 0.1)]}
    slower = {1: [load(40, 0.025)], 8: [load(90, 0.6)]}
    half = load(50, 0.03).exchanges
    costs = {
        OUR_SERVER: ServerCost(ours, half, 2**30),
        "another": ServerCost(slower, half, 2**31),
    }
    table = peers.servers_table(costs)
    assert f"| {OUR_SERVER} | 20.0 ms | 100.0 | 100 ms | 100.0 | 30 and 30 ms | 1024 MiB |" in table
    assert "| another | 25.0 ms | 90.0 | 600 ms | 40.0 | 30 and 30 ms | 2048 MiB |" in table
