"""Inference and training step on an idle CPU: `python -m eulerlora_lab.benchmarks.cpu`."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product

import click
import torch
from torch import Generator, Tensor

from eulerlora.nn.network import predict_images
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw
from eulerlora_contract.sampling import PRECISIONS, Precision
from eulerlora_lab.benchmarks.baselines.naive import naive_logits, ordinary_members
from eulerlora_lab.benchmarks.results import Result, Target, at_most, report
from eulerlora_lab.benchmarks.training_step import step_memory, step_time
from eulerlora_lab.benchmarks.workload import (
    FULL,
    SMALL,
    Plan,
    Workload,
    build_engine,
    build_runtime,
    random_network,
)

_NAIVE_TARGETS: dict[Precision, Target] = {"float32": at_most(0.60), "bfloat16": at_most(0.30)}


def naive_comparison(plan: Plan, precision: Precision) -> Result:
    """Compares all trajectories of an image, ours in a precision, with the naive float32 loop."""
    sizes = plan.sizes.large
    load = Workload.random(sizes, 1, plan.device)
    members, engine = ordinary_members(load.network), build_engine(load.network, precision)
    return plan.comparison(
        f"{sizes.trajectories} trajectories, 1 image, {precision} / naive loop in float32",
        (f"one batch, {precision}", lambda: engine(load.images, load.rows, load.draws)),
        (
            "ordinary LoRA modules, one pass a trajectory, float32",
            lambda: naive_logits(members, load.images, load.coefficients),
        ),
        _NAIVE_TARGETS[precision],
    )


def mixed_batch_comparison(plan: Plan) -> Result:
    """Compares a batch of det and stoch requests on the compact backbone with one at a time.

    The measured time includes drawing the coefficients, as in the service.
    """
    sizes, requests = plan.sizes.compact, plan.sizes.requests
    network = random_network(sizes).to(plan.device)
    engine = build_engine(network, "float32")
    shape = (2 * requests, 3, sizes.backbone.image_size, sizes.backbone.image_size)
    images = torch.rand(shape, generator=Generator().manual_seed(0)).to(plan.device)
    draws = [
        draw
        for seed in range(requests)
        for draw in (Draw(), Draw(mode="stoch", samples=sizes.samples, seed=seed))
    ]

    def predict(images: Tensor, draws: list[Draw]) -> None:
        rows = Rows.of([draw.samples for draw in draws], network.settings.adapters)
        engine(images, rows.to(images.device), network.draw_rows(draws).to(images))

    def one_by_one() -> None:
        for image, draw in zip(images, draws, strict=True):
            predict(image[None], [draw])

    return plan.comparison(
        f"compact backbone, {requests} det + {requests} stoch requests, one batch / one by one",
        ("one mixed batch, float32", lambda: predict(images, draws)),
        ("the same requests one after another, float32", one_by_one),
        at_most(0.80),
        repeats=plan.sizes.request_repeats,
    )


def _runtime_comparison(plan: Plan, precision: Precision, draw: Draw, images: int) -> Result:
    """Compares OpenVINO with torch on a batch with the same draw for each image."""
    network = random_network(plan.sizes.embedded)
    shape = (images, 3, *[network.backbone.settings.image_size] * 2)
    pixels = torch.rand(shape, generator=Generator().manual_seed(0))
    draws, rows = [draw] * images, images * draw.count * network.settings.adapters
    ours = build_runtime(network, precision, "openvino")
    other = build_runtime(network, precision, "torch")
    return plan.comparison(
        f"embedded shape, {draw.mode}, images: {images}, rows: {rows}, {precision}",
        (f"OpenVINO, {precision}", lambda: predict_images(ours, pixels, draws)),
        (f"torch, {precision}", lambda: predict_images(other, pixels, draws)),
    )


COMPARISONS: Mapping[str, Callable[[Plan], Result]] = {
    "naive-float32": partial(naive_comparison, precision="float32"),
    "naive-bfloat16": partial(naive_comparison, precision="bfloat16"),
    "mixed-modes": mixed_batch_comparison,
    "step-time": partial(step_time, method="one-batch"),
    "step-time-cut": partial(step_time, method="micro-batches"),
    "step-memory": partial(step_memory, method="one-batch"),
    "step-memory-cut": partial(step_memory, method="micro-batches"),
}
"""Comparisons of all devices; `benchmarks.gpu` runs them too, `benchmarks.peers` other methods."""

_PASSES = {
    "det-1": (Draw(), 1),
    "stoch-1": (Draw(mode="stoch", samples=4, views=8), 1),
    "det-8": (Draw(), 8),
    "stoch-4": (Draw(mode="stoch", samples=4, views=8), 4),
}
"""Draw and number of images of the compared passes, by name."""

_CPU_COMPARISONS: Mapping[str, Callable[[Plan], Result]] = {
    **COMPARISONS,
    **{
        f"runtime-{name}-{precision}": partial(
            _runtime_comparison, precision=precision, draw=draw, images=images
        )
        for precision, (name, (draw, images)) in product(PRECISIONS, _PASSES.items())
    },
}


@click.command()
@click.option("--small", is_flag=True, help="Use tiny sizes as a functional test.")
@click.option(
    "--only", multiple=True, type=click.Choice(list(_CPU_COMPARISONS)), help="Run only these."
)
@click.option("--threads", type=click.IntRange(min=1), help="Number of torch threads.")
def main(small: bool, only: tuple[str, ...], threads: int | None) -> None:
    """Measure on the CPU and print a table."""
    if threads is not None:
        torch.set_num_threads(threads)
    plan = Plan(SMALL if small else FULL, torch.device("cpu"))
    report(_CPU_COMPARISONS[name](plan) for name in only or _CPU_COMPARISONS)


if __name__ == "__main__":
    main()
