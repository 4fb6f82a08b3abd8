"""Deterministic answers of an ensemble of eight members, by every method.

As a program, `python -m benchmarks.inference.peers METHOD SIZES` prints the memory in bytes of one
method, in a process of its own: the peak while it is built on a given network and answers a batch.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.baselines.lora_ensemble import LoRAEnsemble
from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from benchmarks.measurement.process_memory import peak_growth
from benchmarks.measurement.sizes import NetworkSizes, Sizes
from benchmarks.measurement.timing import Work, alternating_seconds
from benchmarks.measurement.workload import random_network
from benchmarks.training.peak_memory import ROOT
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime
from eulerlora.settings import Draw

MEMBERS = 8
OURS = "ours"
METHODS = {
    OURS: "EulerLoRA, mode det, one batch of rows",
    "lora-ensemble": "LoRA-Ensemble, as its published code computes",
    "peft-mixed-batch": "PEFT, mixed batch by `adapter_names`",
    "peft-set-adapter": "PEFT, `set_adapter` loop",
    "vmap": "`torch.func.vmap` over LoRA modules, frozen weights shared",
    "loop": "ordinary LoRA modules, one pass a member",
}

Answers = Callable[[Tensor], Tensor]
"""Images (n, 3, image_size, image_size) -> logits; their shape differs by method."""


@dataclass(frozen=True)
class MethodCost:
    """Median seconds for one image and for `Sizes.images`, ratios to ours, memory in bytes."""

    one_image: float
    one_image_ratio: float
    images: float
    images_ratio: float
    memory: int


def eight_members(sizes: NetworkSizes) -> NetworkSizes:
    """Returns the sizes with an adapter for each member."""
    adapters = sizes.adapters.model_copy(update={"adapters": MEMBERS})
    return sizes.model_copy(update={"adapters": adapters})


def build(method: str, network: AdaptedVisionTransformer) -> Answers:
    """Returns the answers of the network's adapters by one of `METHODS`."""
    if method == OURS:
        return _ours(network)
    if method.startswith("peft"):
        peft = PeftVisionTransformer(network)
        return peft.mixed_batch if method == "peft-mixed-batch" else peft.adapter_by_adapter
    members = ordinary_members(network)
    if method == "lora-ensemble":
        return LoRAEnsemble(members)
    shape = (MEMBERS, 1, len(network.blocks), 4, network.settings.rank)
    plain = torch.ones(shape, device=network.heads.weight.device)
    if method == "loop":
        return lambda images: naive_logits(members, images, plain)
    ensemble = vmap_ensemble(members, samples=1)
    return lambda images: ensemble(images, plain)


def method_costs(sizes: Sizes, device: torch.device) -> dict[str, MethodCost]:
    """Returns the costs of all methods, measured in alternation."""
    large = eight_members(sizes.large)
    network = random_network(large).to(device)
    answers = [build(method, network) for method in METHODS]
    counts = (1, sizes.images)
    times = []
    for count in counts:
        images = random_images(large, count).to(device)
        works: list[Work] = [partial(answer, images) for answer in answers]
        times.append(alternating_seconds(works, sizes.repeats, sizes.warmups, device))
    return {
        method: MethodCost(
            one_image=median(single),
            one_image_ratio=_ratio(single, times[0][0]),
            images=median(several),
            images_ratio=_ratio(several, times[1][0]),
            memory=_memory(method, sizes),
        )
        for method, single, several in zip(METHODS, *times, strict=True)
    }


def random_images(sizes: NetworkSizes, count: int) -> Tensor:
    """Returns (count, 3, image_size, image_size) in [0, 1]."""
    side = sizes.backbone.image_size
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def _ours(network: AdaptedVisionTransformer) -> Answers:
    runtime = Runtime(network, network.heads.weight.device)

    @torch.inference_mode()
    def logits(images: Tensor) -> Tensor:
        rows = Rows.of([1] * len(images), network.settings.adapters).to(images.device)
        return runtime(images, rows, network.draw_rows([Draw()] * len(images)).to(images))

    return logits


def _ratio(seconds: list[float], ours: list[float]) -> float:
    return median(theirs / own for theirs, own in zip(seconds, ours, strict=True))


def _memory(method: str, sizes: Sizes) -> int:
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.inference.peers", method, sizes.model_dump_json()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(completed.stdout)


def _print_memory(method: str, sizes: Sizes) -> None:
    large = eight_members(sizes.large)
    network, images = random_network(large), random_images(large, sizes.images)
    _ours(network)(images)  # what torch allocates once
    print(peak_growth(lambda: build(method, network)(images)))


if __name__ == "__main__":
    _print_memory(sys.argv[1], Sizes.model_validate_json(sys.argv[2]))
