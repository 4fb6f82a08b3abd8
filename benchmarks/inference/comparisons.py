"""Comparisons of inference: the naive loop, the vmap ensemble, PEFT, the ceiling."""

import torch

from benchmarks.baselines.engine import answers, engine
from benchmarks.baselines.merged import merged_logits, merged_members
from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from benchmarks.inference.arithmetic import needed
from benchmarks.inference.ceiling import best_ceiling, candidates
from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import Work, paired_seconds
from benchmarks.measurement.workload import Plan, Workload, described
from eulerlora.rows import Rows
from eulerlora.settings import Draw, Precision

NAIVE_TARGETS: dict[Precision, float] = {"float32": 0.60, "bfloat16": 0.30}


def naive_comparison(plan: Plan, precision: Precision) -> Result:
    """All trajectories of one image, ours in `precision`, over the naive loop in float32."""
    sizes = plan.sizes.large
    load = Workload.random(sizes, 1, plan.device)
    members, ours = ordinary_members(load.network), engine(load.network, precision)
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories, 1 image, {precision} / naive loop in float32",
        ours=f"one batch, {precision}",
        reference="ordinary LoRA modules, one pass a trajectory, float32",
        target=Target(bound="at most", value=NAIVE_TARGETS[precision]),
    )
    seconds = _alternate(
        plan,
        lambda: ours(load.images, load.rows, load.coefficients),
        lambda: naive_logits(members, load.images, load.own),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=1))


def ensemble_comparison(plan: Plan) -> Result:
    """All trajectories of a batch of images over the vmap ensemble, both in float32."""
    sizes, images = plan.sizes.large, plan.sizes.images
    load = Workload.random(sizes, images, plan.device)
    ours = engine(load.network, "float32")
    ensemble = vmap_ensemble(ordinary_members(load.network), sizes.samples)
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories, {images} images, float32 / vmap ensemble",
        ours="one batch, float32",
        reference="torch.func.vmap over stacked LoRA modules, float32",
        target=Target(bound="at most", value=0.40),
    )
    seconds = _alternate(
        plan,
        lambda: ours(load.images, load.rows, load.coefficients),
        lambda: ensemble(load.images, load.own),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=images))


def peft_comparison(plan: Plan, mixed_batch: bool) -> Result:
    """Deterministic rows over PEFT's, as many as the trajectories of one stochastic image.

    PEFT has no coefficients, so both sides do plain LoRA: a row for each image and adapter.
    """
    sizes = plan.sizes.large
    images = sizes.samples
    load = Workload.random(sizes, images, plan.device)
    ours, peft = engine(load.network, "float32"), PeftVisionTransformer(load.network)
    theirs = peft.mixed_batch if mixed_batch else peft.one_after_another
    way = "mixed batch by adapter_names" if mixed_batch else "set_adapter loop"
    comparison = Comparison(
        name=f"{sizes.trajectories} deterministic rows, {images} images, float32 / PEFT, {way}",
        ours="one batch, mode det, float32",
        reference=f"PEFT on transformers' ViT, {way}, float32",
    )
    draws, settings = [Draw()] * images, sizes.adapters
    seconds = _alternate(
        plan,
        lambda: answers(ours, load.images, draws, sizes.backbone.layers, settings),
        lambda: theirs(load.images),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=images, mode="det"))


def merged_comparison(plan: Plan, images: int) -> Result:
    """Deterministic rows over merged weights, which save the low-rank products and cost a copy of
    the backbone for each adapter.
    """
    sizes = plan.sizes.large
    load = Workload.random(sizes, images, plan.device)
    ours, members = engine(load.network, "float32"), merged_members(load.network)
    some = "1 image" if images == 1 else f"{images} images"
    comparison = Comparison(
        name=f"mode det, {some}, float32 / merged weights",
        ours="one batch of rows, float32",
        reference="torchvision's model with merged weights, one pass an adapter, float32",
    )
    draws, settings = [Draw()] * images, sizes.adapters
    seconds = _alternate(
        plan,
        lambda: answers(ours, load.images, draws, sizes.backbone.layers, settings),
        lambda: merged_logits(members, load.images),
    )
    return comparison.result(*seconds, plan.device, described(sizes, images=images, mode="det"))


def ceiling_comparison(
    plan: Plan, precision: Precision, images: int, least: float, compiler: str | None = None
) -> Result:
    """The share of the best matrix-product rate at which the needed arithmetic is done."""
    sizes, dtype = plan.sizes.large, getattr(torch, precision)
    rows = images * sizes.trajectories
    load = Workload.random(sizes, images, plan.device)
    ours = engine(load.network, precision, compiler)
    ceiling = best_ceiling(
        candidates(sizes.backbone, rows, plan.sizes.squares),
        dtype,
        plan.device,
        plan.sizes.repeats,
        plan.sizes.warmups,
    )
    flops = needed(sizes.backbone, images, rows, sizes.adapters.rank, sizes.classes).total
    compiled = "" if compiler is None else ", compiled"
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories, {images} images, {precision}{compiled}, "
        "share of ceiling",
        ours=f"one batch, {precision}{compiled}",
        reference=f"best of {len(plan.sizes.squares) + 3} matrix products, {precision}",
        target=Target(bound="at least", value=least),
    )
    seconds = _alternate(plan, lambda: ours(load.images, load.rows, load.coefficients), ceiling)
    work, best = (float(flops), float(ceiling.flops)), vars(ceiling.product)
    more = described(sizes, images=images, ceiling_product=best)
    return comparison.result(*seconds, plan.device, more, work)


def latency_comparison(plan: Plan) -> Result:
    """All trajectories of one image over a single one, bfloat16, compiled where asked."""
    sizes = plan.sizes.large
    load = Workload.random(sizes, 1, plan.device)
    ours = engine(load.network, "bfloat16", plan.compiler)
    single = Rows(load.rows.image[:1], load.rows.adapter[:1], (1,))
    comparison = Comparison(
        name=f"{sizes.trajectories} trajectories / 1 trajectory, 1 image, bfloat16, compiled",
        ours=f"{sizes.trajectories} rows",
        reference="1 row",
        target=Target(bound="at most", value=1.5),
    )
    seconds = _alternate(
        plan,
        lambda: ours(load.images, load.rows, load.coefficients),
        lambda: ours(load.images, single, load.coefficients[:1]),
    )
    more = described(sizes, images=1, compiler=plan.compiler)
    return comparison.result(*seconds, plan.device, more)


def _alternate(plan: Plan, ours: Work, reference: Work) -> tuple[list[float], list[float]]:
    sizes = plan.sizes
    return paired_seconds(ours, reference, sizes.repeats, sizes.warmups, plan.device)
