"""The comparison of serving: requests of both modes in one batch, or one after another."""

import torch
from torch import Generator

from benchmarks.baselines.engine import answers, engine, random_network
from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import paired_seconds
from benchmarks.measurement.workload import Plan, described
from eulerlora.settings import Draw


def mixed_batch_comparison(plan: Plan) -> Result:
    """As many requests of mode det as of stoch, on the compact backbone in float32.

    Coefficients are drawn within the measured time, as the service draws them.
    """
    sizes, each = plan.sizes.compact, plan.sizes.requests
    network = random_network(sizes).to(plan.device)
    ours, blocks, settings = engine(network, "float32"), len(network.blocks), sizes.adapters
    shape = (2 * each, 3, sizes.backbone.image_size, sizes.backbone.image_size)
    images = torch.rand(shape, generator=Generator().manual_seed(0)).to(plan.device)
    draws = [
        draw
        for seed in range(each)
        for draw in (Draw(), Draw(mode="stoch", samples=sizes.samples, seed=seed))
    ]

    def one_after_another() -> None:
        for image, draw in zip(images, draws, strict=True):
            answers(ours, image[None], [draw], blocks, settings)

    comparison = Comparison(
        name=f"compact backbone, {each} det + {each} stoch requests, one batch / one by one",
        ours="one mixed batch, float32",
        reference="the same requests one after another, float32",
        target=Target(bound="at most", value=0.80),
    )
    seconds = paired_seconds(
        lambda: answers(ours, images, draws, blocks, settings),
        one_after_another,
        plan.sizes.request_repeats,
        plan.sizes.warmups,
        plan.device,
    )
    return comparison.result(*seconds, plan.device, described(sizes, requests=2 * each))
