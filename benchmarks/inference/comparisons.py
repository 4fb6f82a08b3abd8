"""Comparisons of inference with the naive loop, vmap, PEFT, merged weights and the ceiling."""

import torch

from benchmarks.baselines.engine import build_engine, predict
from benchmarks.baselines.merged import merged_logits, merged_members
from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from benchmarks.inference.arithmetic import minimum as minimum_arithmetic
from benchmarks.inference.captured_engine import captured_engine
from benchmarks.inference.ceiling import best_ceiling, candidates
from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import Work, paired_seconds
from benchmarks.measurement.workload import Plan, Workload, described
from eulerlora.nn.rows import Rows
from eulerlora.prediction.precision import missing_bfloat16
from eulerlora.settings import AUTO, Draw, Precision, PrecisionChoice

NAIVE_TARGETS: dict[PrecisionChoice, float] = {"float32": 0.60, "bfloat16": 0.30, AUTO: 0.15}

VMAP_LIMIT = 0.60
"""The arithmetic allows no less: vmap needs 11% more, in products that are as large as ours."""


def naive_comparison(plan: Plan, choice: PrecisionChoice) -> Result:
    """Compares all trajectories of an image, ours in a precision, with the naive float32 loop.

    choice: `auto` for what the device has; the random network has no gate to pass.
    """
    precision = served_precision(choice, plan.device)
    sizes = plan.sizes.large
    load = Workload.random(sizes, 1, plan.device)
    members, ours = ordinary_members(load.network), build_engine(load.network, precision)
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories, 1 image, {choice} / naive loop in float32",
        ours=f"one batch, {precision}",
        reference="ordinary LoRA modules, one pass a trajectory, float32",
        target=Target(bound="at most", value=NAIVE_TARGETS[choice]),
    )
    seconds = _alternate(
        plan,
        lambda: ours(load.images, load.rows, load.draws),
        lambda: naive_logits(members, load.images, load.unstacked),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=1))


def served_precision(choice: PrecisionChoice, device: torch.device) -> Precision:
    """Returns the precision of a choice on a device whose gate passes."""
    if choice != AUTO:
        return choice
    return "bfloat16" if missing_bfloat16(device) is None else "float32"


def ensemble_comparison(plan: Plan) -> Result:
    """Compares all trajectories of a batch of images with the vmap ensemble in float32."""
    sizes, images = plan.sizes.large, plan.sizes.images
    load = Workload.random(sizes, images, plan.device)
    ours = build_engine(load.network, "float32")
    ensemble = vmap_ensemble(ordinary_members(load.network), sizes.samples)
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories, {images} images, float32 / vmap ensemble",
        ours="one batch, float32",
        reference="torch.func.vmap over stacked LoRA modules, float32",
        target=Target(bound="at most", value=VMAP_LIMIT),
    )
    seconds = _alternate(
        plan,
        lambda: ours(load.images, load.rows, load.draws),
        lambda: ensemble(load.images, load.unstacked),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=images))


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
    comparison = Comparison(
        name=f"{sizes.trajectories} deterministic rows, {images} images, float32 / PEFT, {method}",
        ours="one batch, mode det, float32",
        reference=f"PEFT on transformers' ViT, {method}, float32",
    )
    draws = [Draw()] * images
    seconds = _alternate(
        plan,
        lambda: predict(ours, load.images, draws, load.network),
        lambda: reference(load.images),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=images, mode="det"))


def merged_comparison(plan: Plan, images: int) -> Result:
    """Compares deterministic rows with merged weights.

    Merging saves the low-rank products and needs a copy of the backbone for each adapter.
    """
    sizes = plan.sizes.large
    load = Workload.random(sizes, images, plan.device)
    ours, members = build_engine(load.network, "float32"), merged_members(load.network)
    count = "1 image" if images == 1 else f"{images} images"
    comparison = Comparison(
        name=f"mode det, {count}, float32 / merged weights",
        ours="one batch of rows, float32",
        reference="torchvision's model with merged weights, one pass an adapter, float32",
    )
    draws = [Draw()] * images
    seconds = _alternate(
        plan,
        lambda: predict(ours, load.images, draws, load.network),
        lambda: merged_logits(members, load.images),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=images, mode="det"))


def ceiling_comparison(
    plan: Plan, precision: Precision, images: int, minimum: float, compiler: str | None = None
) -> Result:
    """Compares the rate of the minimum arithmetic with the highest matrix-product rate."""
    sizes, dtype = plan.sizes.large, getattr(torch, precision)
    rows = images * sizes.trajectories
    load = Workload.random(sizes, images, plan.device)
    ours = build_engine(load.network, precision)
    if compiler is not None:
        ours = captured_engine(sizes, plan.device, compiler).run
    ceiling = best_ceiling(
        candidates(sizes.backbone, rows, plan.sizes.squares),
        dtype,
        plan.device,
        plan.sizes.repeats,
        plan.sizes.warmups,
    )
    flops = minimum_arithmetic(
        sizes.backbone, images, rows, sizes.adapters.rank, sizes.classes
    ).total
    compiled = "" if compiler is None else ", compiled"
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories, {images} images, {precision}{compiled}, "
        "share of ceiling",
        ours=f"one batch, {precision}{compiled}",
        reference=f"best of {len(plan.sizes.squares) + 3} matrix products, {precision}",
        target=Target(bound="at least", value=minimum),
    )
    seconds = _alternate(plan, lambda: ours(load.images, load.rows, load.draws), ceiling)
    details = described(sizes, images=images, ceiling_product=vars(ceiling.product))
    work = (float(flops), float(ceiling.flops))
    return comparison.result(*seconds, plan.device, details, work)


def latency_comparison(plan: Plan) -> Result:
    """Compares all trajectories of an image with a single one, in bfloat16."""
    sizes = plan.sizes.large
    load = Workload.random(sizes, 1, plan.device)
    ours = captured_engine(sizes, plan.device, plan.compiler).run
    single = Rows(load.rows.image[:1], load.rows.adapter[:1], (1,))
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories / 1 trajectory, 1 image, bfloat16, compiled",
        ours=f"{sizes.trajectories} rows",
        reference="1 row",
        target=Target(bound="at most", value=1.5),
    )
    seconds = _alternate(
        plan,
        lambda: ours(load.images, load.rows, load.draws),
        lambda: ours(load.images, single, load.draws.rows(slice(1))),
    )
    details = described(sizes, images=1, compiler=plan.compiler)
    return comparison.result(*seconds, plan.device, details)


def _alternate(plan: Plan, ours: Work, reference: Work) -> tuple[list[float], list[float]]:
    sizes = plan.sizes
    return paired_seconds(ours, reference, sizes.repeats, sizes.warmups, plan.device)
