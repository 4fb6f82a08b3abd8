"""Comparisons of inference with the naive loop, vmap, PEFT, one request at a time, and a ceiling.

The ceiling is the highest rate of a matrix product in this process.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from benchmarks.arithmetic import minimum_flops
from benchmarks.baselines.naive import naive_logits, ordinary_members, vmap_ensemble
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.compiled_engine import engine_of
from benchmarks.results import Measurement, Result, Target, at_least, at_most
from benchmarks.timing import alternating_seconds
from benchmarks.workload import Plan, Workload, build_engine, described, predict, random_network
from eulerlora.prediction.precision import missing_bfloat16
from eulerlora.settings import BackboneSettings, Draw
from eulerlora_client.contract.sampling import AUTO, Precision, PrecisionChoice

NAIVE_TARGETS: dict[PrecisionChoice, Target] = {
    "float32": at_most(0.60),
    "bfloat16": at_most(0.30),
    AUTO: at_most(0.15),
}
VMAP_TARGET = at_most(0.60)
"""The arithmetic allows no less: vmap needs 11% more, in products that are as large as ours."""


def naive_comparison(plan: Plan, choice: PrecisionChoice) -> Result:
    """Compares all trajectories of an image, ours in a precision, with the naive float32 loop.

    choice: `auto` for what the device has; the random network has no gate to pass.
    """
    precision: Precision
    if choice == AUTO:
        precision = "bfloat16" if missing_bfloat16(plan.device) is None else "float32"
    else:
        precision = choice
    sizes = plan.sizes.large
    load = Workload.random(sizes, 1, plan.device)
    members, ours = ordinary_members(load.network), build_engine(load.network, precision)
    measurement = Measurement(
        name=f"{sizes.trajectories} trajectories, 1 image, {choice} / naive loop in float32",
        ours=f"one batch, {precision}",
        reference="ordinary LoRA modules, one pass a trajectory, float32",
        target=NAIVE_TARGETS[choice],
    )
    return plan.comparison(
        measurement,
        lambda: ours(load.images, load.rows, load.draws),
        lambda: naive_logits(members, load.images, load.unstacked),
        described(sizes, images=1),
    )


def vmap_comparison(plan: Plan) -> Result:
    """Compares all trajectories of a batch of images with the vmap ensemble in float32."""
    sizes, images = plan.sizes.large, plan.sizes.images
    load = Workload.random(sizes, images, plan.device)
    ours = build_engine(load.network, "float32")
    ensemble = vmap_ensemble(ordinary_members(load.network), sizes.samples)
    measurement = Measurement(
        name=f"{sizes.trajectories} trajectories, {images} images, float32 / vmap ensemble",
        ours="one batch, float32",
        reference="torch.func.vmap over stacked LoRA modules, float32",
        target=VMAP_TARGET,
    )
    return plan.comparison(
        measurement,
        lambda: ours(load.images, load.rows, load.draws),
        lambda: ensemble(load.images, load.unstacked),
        described(sizes, images=images),
    )


def peft_comparison(plan: Plan, mixed_batch: bool) -> Result:
    """Compares deterministic rows with PEFT, as many as trajectories of a stochastic image.

    PEFT has no coefficients, so both sides compute plain LoRA: a row for each image and adapter.
    """
    sizes = plan.sizes.large
    images = sizes.samples
    load = Workload.random(sizes, images, plan.device)
    ours, peft = build_engine(load.network, "float32"), PeftVisionTransformer(load.network)
    reference = peft.mixed_batch if mixed_batch else peft.adapter_by_adapter
    method = "mixed batch by adapter_names" if mixed_batch else "set_adapter loop"
    measurement = Measurement(
        name=f"{sizes.trajectories} deterministic rows, {images} images, float32 / PEFT, {method}",
        ours="one batch, mode det, float32",
        reference=f"PEFT on transformers' ViT, {method}, float32",
    )
    draws = [Draw()] * images
    return plan.comparison(
        measurement,
        lambda: predict(ours, load.images, draws, load.network),
        lambda: reference(load.images),
        described(sizes, images=images, mode="det"),
    )


def mixed_batch_comparison(plan: Plan) -> Result:
    """Compares a batch of det and stoch requests on the compact backbone with one at a time.

    The measured time includes drawing the coefficients, as in the service.
    """
    sizes, requests = plan.sizes.compact, plan.sizes.requests
    network = random_network(sizes).to(plan.device)
    ours = build_engine(network, "float32")
    shape = (2 * requests, 3, sizes.backbone.image_size, sizes.backbone.image_size)
    images = torch.rand(shape, generator=Generator().manual_seed(0)).to(plan.device)
    draws = [
        draw
        for seed in range(requests)
        for draw in (Draw(), Draw(mode="stoch", samples=sizes.samples, seed=seed))
    ]

    def one_by_one() -> None:
        for image, draw in zip(images, draws, strict=True):
            predict(ours, image[None], [draw], network)

    measurement = Measurement(
        name=f"compact backbone, {requests} det + {requests} stoch requests, "
        "one batch / one by one",
        ours="one mixed batch, float32",
        reference="the same requests one after another, float32",
        target=at_most(0.80),
    )
    return plan.comparison(
        measurement,
        lambda: predict(ours, images, draws, network),
        one_by_one,
        described(sizes, requests=2 * requests),
        repeats=plan.sizes.request_repeats,
    )


def ceiling_comparison(plan: Plan) -> Result:
    """Compares the rate of the least arithmetic with the highest rate of a matrix product.

    The engine of the CPU runs in float32, that of a GPU compiled in bfloat16.
    """
    compiled = plan.compiler is not None
    precision: Precision = "bfloat16" if compiled else "float32"
    sizes, images = plan.sizes.large, plan.sizes.images
    if compiled:
        images = plan.sizes.throughput_images
    rows = images * sizes.trajectories
    load = Workload.random(sizes, images, plan.device)
    ours = engine_of(plan).run if compiled else build_engine(load.network, precision)
    products = candidates(sizes.backbone, rows, plan.sizes.squares)
    ceiling = best_ceiling(products, precision, plan)
    least = minimum_flops(sizes.backbone, images, rows, sizes.adapters.rank, sizes.classes)
    variant = f"{precision}, compiled" if compiled else precision
    measurement = Measurement(
        name=f"{sizes.trajectories} trajectories, {images} images, {variant}, share of ceiling",
        ours=f"one batch, {variant}",
        reference=f"best of {len(products)} matrix products, {precision}",
        target=at_least(0.50 if compiled else 0.85),
    )
    return plan.comparison(
        measurement,
        lambda: ours(load.images, load.rows, load.draws),
        ceiling,
        described(sizes, images=images, ceiling_product=vars(ceiling.product)),
        work=(float(least), float(ceiling.product.flops)),
    )


@dataclass(frozen=True)
class Product:
    """Shape of the product (rows, inner) @ (inner, columns) of a linear layer."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""
        return 2 * self.rows * self.inner * self.columns

    def operands(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns random inputs (rows, inner) and weight (columns, inner)."""
        inputs = torch.randn(self.rows, self.inner, device=device).to(dtype)
        return inputs, torch.randn(self.columns, self.inner, device=device).to(dtype)


class Ceiling:
    """Computes a product when called."""

    def __init__(self, product: Product, precision: Precision, device: torch.device) -> None:
        self.product = product
        self._inputs, self._weight = product.operands(getattr(torch, precision), device)

    @torch.inference_mode()
    def __call__(self) -> None:
        F.linear(self._inputs, self._weight)


def candidates(backbone: BackboneSettings, rows: int, squares: Sequence[int]) -> list[Product]:
    """Returns square products and the products of the frozen layers over all rows."""
    tokens, width, mlp_width = rows * backbone.tokens, backbone.width, backbone.mlp_width
    shapes = [(side, side, side) for side in squares]
    shapes += [(tokens, width, 3 * width), (tokens, width, mlp_width)]
    shapes += [(tokens, mlp_width, width)]
    return [Product(*shape) for shape in shapes]


def best_ceiling(products: Sequence[Product], precision: Precision, plan: Plan) -> Ceiling:
    """Returns the product with the highest rate, by the median of alternating runs."""
    ceilings = [Ceiling(product, precision, plan.device) for product in products]
    seconds = alternating_seconds(ceilings, plan.sizes.repeats, plan.sizes.warmups, plan.device)
    rates = [
        ceiling.product.flops / sorted(times)[len(times) // 2]
        for ceiling, times in zip(ceilings, seconds, strict=True)
    ]
    return ceilings[rates.index(max(rates))]
