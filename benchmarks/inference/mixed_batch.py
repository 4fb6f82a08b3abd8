"""Comparison of requests of both modes in one batch with requests one by one."""

import torch
from torch import Generator

from benchmarks.baselines.engine import build_engine, predict
from benchmarks.measurement.result import Comparison, Result, Target
from benchmarks.measurement.timing import paired_seconds
from benchmarks.measurement.workload import Plan, described, random_network
from eulerlora.settings import Draw


def mixed_batch_comparison(plan: Plan) -> Result:
    """Compares equal numbers of det and stoch requests on the compact backbone in float32.

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

    comparison = Comparison(
        name=f"compact backbone, {requests} det + {requests} stoch requests, "
        "one batch / one by one",
        ours="one mixed batch, float32",
        reference="the same requests one after another, float32",
        target=Target(bound="at most", value=0.80),
    )
    seconds = paired_seconds(
        lambda: predict(ours, images, draws, network),
        one_by_one,
        plan.sizes.request_repeats,
        plan.sizes.warmups,
        plan.device,
    )
    return comparison.result(*seconds, plan.device, described(sizes, requests=2 * requests))
