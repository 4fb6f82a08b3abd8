"""The engine on a device as it runs plainly, recorded and compiled, beside plain networks.

Everything is in bfloat16. An engine is checked against the network's plain float32 pass before it
is timed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, Literal

import psutil
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import TorchRuntime, row_counts
from eulerlora.settings import RuntimeSettings
from eulerlora_lab.benchmarks.results import Result, at_most
from eulerlora_lab.benchmarks.timing import Work, alternating_seconds, busy_shares, synchronise
from eulerlora_lab.benchmarks.workload import Engine, Plan, Workload, random_network

EngineKind = Literal["plain", "recorded", "compiled"]
"""One kernel after another; graphs of whole passes; graphs that `torch.compile` made."""

_TOLERANCE = 3e-2
"""Of probabilities in bfloat16."""
_MEASURED_ROWS = (1, 8, 32, 128)


@dataclass(frozen=True)
class _PreparedEngine:
    """An engine that is ready for every row count.

    Attributes:
        row_counts: Those that are measured.
        seconds: That the first passes took.
    """

    run: Engine
    row_counts: Sequence[int]
    seconds: float


@cache
def _engine_of(plan: Plan, kind: EngineKind) -> _PreparedEngine:
    """The engine after its first passes, which record or compile it.

    Raises:
        ArithmeticError: If it differs from the plain network.
    """
    sizes, device = plan.sizes.large, plan.device
    network = random_network(sizes).requires_grad_(False).to(device)
    compiler = plan.compiler if kind == "compiled" else None
    settings = RuntimeSettings(precision="bfloat16", compiler=compiler, graphs=kind == "recorded")
    runtime = TorchRuntime(network, device, settings)
    run: Engine = torch.inference_mode()(runtime.__call__)
    counts = row_counts(runtime.max_rows_per_pass)
    started = time.perf_counter()
    for count in reversed(counts):
        _pass_of(plan, run, count)()
    synchronise(device)
    seconds = time.perf_counter() - started
    load, on_cpu = (
        Workload.random(sizes, min(2, plan.sizes.images), one)
        for one in (device, torch.device("cpu"))
    )
    with torch.inference_mode():
        expected = on_cpu.network(on_cpu.images, on_cpu.rows, on_cpu.draws)
    check(run(load.images, load.rows, load.draws), expected, _TOLERANCE)
    measured = [count for count in counts if count in _MEASURED_ROWS]
    return _PreparedEngine(run, measured, seconds)


def check(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Compares the probabilities of logits; NaN differs by 1.

    Raises:
        ArithmeticError: If one differs by more than the tolerance.
    """
    first, second = (each.detach().cpu().double().softmax(dim=-1) for each in (actual, expected))
    largest = (first - second).abs().nan_to_num(nan=1.0).max().item()
    if largest > tolerance:
        raise ArithmeticError(f"a probability differs by {largest:.2g}, more than {tolerance:g}")


def row_rates(plan: Plan, kind: EngineKind) -> Iterator[Result]:
    """The time of the first passes, rows per second, and how busy the device is meanwhile."""
    engine = _engine_of(plan, kind)
    name = f"first passes of all row counts, bfloat16, {kind}"
    yield Result(name, "with what it records or compiles", engine.seconds, [engine.seconds])
    passes = [_pass_of(plan, engine.run, count) for count in engine.row_counts]
    labels = [
        f"passes of {count} rows of {-(-count // plan.sizes.large.trajectories)} images, "
        f"bfloat16, {kind}"
        for count in engine.row_counts
    ]
    yield from _rates(plan, labels, engine.row_counts, passes)
    yield from _utilisation(plan, labels[-1], passes[-1])


def plain_networks(plan: Plan, library: Literal["ours", "timm"]) -> Iterator[Result]:
    """Images per second of a Vision Transformer of the same shape with a head and no adapters.

    `ours`: the backbone of this project, compiled. `timm`: as it is, if it is installed.
    """
    make = _compiled_backbone if library == "ours" else _timm_network
    network, name = make(plan), "a plain ViT, compiled" if library == "ours" else "timm's ViT"
    side = plan.sizes.large.backbone.image_size
    counts = _engine_of(plan, "plain").row_counts
    passes = []
    for count in counts:
        images = torch.rand(count, 3, side, side, device=plan.device).bfloat16()
        passes.append(torch.inference_mode()(partial(network, images)))
    labels = [f"passes of {count} images, bfloat16, {name}" for count in counts]
    yield from _rates(plan, labels, counts, passes)
    yield from _utilisation(plan, labels[-1], passes[-1])


def _compiled_backbone(plan: Plan) -> Callable[[Tensor], Tensor]:
    sizes = plan.sizes.large
    backbone = VisionTransformer(sizes.backbone)
    head = torch.nn.Linear(sizes.backbone.width, sizes.classes)
    network = torch.nn.Sequential(backbone, head).eval().to(plan.device, torch.bfloat16)
    if plan.compiler is None:
        return network
    mode = "reduce-overhead" if plan.compiler == "inductor" else None
    compiled: Callable[[Tensor], Tensor] = torch.compile(
        network, backend=plan.compiler, mode=mode, dynamic=False
    )
    return compiled


def _timm_network(plan: Plan) -> Callable[[Tensor], Tensor]:
    timm: Any = import_module("timm.models.vision_transformer")
    sizes, shape = plan.sizes.large, plan.sizes.large.backbone
    network = timm.VisionTransformer(
        img_size=shape.image_size,
        patch_size=shape.patch_size,
        embed_dim=shape.width,
        depth=shape.layers,
        num_heads=shape.heads,
        mlp_ratio=shape.mlp_width / shape.width,
        num_classes=sizes.classes,
    )
    made: Callable[[Tensor], Tensor] = network.eval().to(plan.device, torch.bfloat16)
    return made


def _rates(
    plan: Plan, names: Sequence[str], counts: Sequence[int], passes: Sequence[Work]
) -> Iterator[Result]:
    times = alternating_seconds(passes, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    for name, count, seconds in zip(names, counts, times, strict=True):
        rates = [count / value for value in seconds]
        pass_us = f"{1e6 * median(seconds):.0f} us a pass"
        yield Result(name, pass_us, median(rates), rates, "rows/s")


@contextmanager
def utilisation(name: str, device: torch.device, every_s: float) -> Iterator[list[Result]]:
    """A row on how busy the device is while the block runs; none without nvidia-ml-py."""
    results: list[Result] = []
    if device.type == "cuda" and find_spec("pynvml") is None:
        yield results
        return
    with busy_shares(device, every_s) as shares:
        yield results
    what = "share of time with a kernel" if device.type == "cuda" else "share of all CPUs"
    results.append(Result(f"utilisation, {name}", what, median(shares), shares, "share"))


def _utilisation(plan: Plan, name: str, work: Work) -> Iterator[Result]:
    with utilisation(name, plan.device, plan.sizes.utilisation_s / 10) as results:
        ends = time.perf_counter() + plan.sizes.utilisation_s
        while time.perf_counter() < ends:
            work()
            synchronise(plan.device)
    yield from results


def matrix_product_share(plan: Plan) -> Iterator[Result]:
    """Floating-point operations per second of the largest pass, as a part of those of a product of
    square bfloat16 matrices on the same device."""
    sizes, engine = plan.sizes.large, _engine_of(plan, "recorded")
    count = engine.row_counts[-1]
    load = Workload.random(sizes, -(-count // sizes.trajectories), plan.device)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        load.network(load.images, load.rows, load.draws)
    pass_flop = counter.get_total_flops() * count / len(load.rows)
    side = 8192 if plan.device.type == "cuda" else 512
    square = torch.rand(side, side, device=plan.device).bfloat16()
    works = [_pass_of(plan, engine.run, count), lambda: square @ square]
    ours, product = alternating_seconds(works, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    rates = [pass_flop / seconds for seconds in ours]
    product_rates = [2 * side**3 / seconds for seconds in product]
    yield Result(
        name=f"arithmetic of passes of {count} rows / of a product of {side} x {side} matrices",
        ours=f"{median(rates) / 1e12:.4g} TFLOP/s",
        value=median(rates) / median(product_rates),
        measured=[a / b for a, b in zip(rates, product_rates, strict=True)],
        unit="ratio",
        reference=f"{median(product_rates) / 1e12:.4g} TFLOP/s, bfloat16",
    )


def pass_memory(plan: Plan) -> Iterator[Result]:
    """Measures the memory of weights, graphs and the largest pass; on a CPU, of the process."""
    engine = _engine_of(plan, "recorded")
    largest_pass = _pass_of(plan, engine.run, engine.row_counts[-1])
    if plan.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(plan.device)
        largest_pass()
        size = torch.cuda.max_memory_reserved(plan.device)
    else:
        largest_pass()
        size = psutil.Process().memory_info().rss
    yield Result(
        "memory after the largest pass, bfloat16, recorded",
        "reserved by torch on the device, or RSS of the process on a CPU",
        size,
        [size],
        "bytes",
    )


def latency(plan: Plan) -> Iterator[Result]:
    sizes, run = plan.sizes.large, _engine_of(plan, "recorded").run
    load = Workload.random(sizes, 1, plan.device)
    single = Rows.grouped(load.rows.image[:1], load.rows.adapter[:1], (1,))
    yield plan.comparison(
        f"{sizes.trajectories} trajectories / 1 trajectory, 1 image, bfloat16, recorded",
        (f"{sizes.trajectories} rows", lambda: run(load.images, load.rows, load.draws)),
        ("1 row", lambda: run(load.images, single, load.draws.rows(slice(1)))),
        at_most(1.5),
    )


def _pass_of(plan: Plan, run: Engine, count: int) -> Work:
    """A pass of an engine with `count` rows of as few images as possible."""
    sizes = plan.sizes.large
    load = Workload.random(sizes, -(-count // sizes.trajectories), plan.device)
    by_image = [sizes.trajectories] * (count // sizes.trajectories)
    rest = count % sizes.trajectories
    counts = (*by_image, rest) if rest else tuple(by_image)
    rows = Rows.grouped(load.rows.image[:count], load.rows.adapter[:count], counts)
    draws = load.draws.rows(slice(count))
    return lambda: run(load.images, rows, draws)
