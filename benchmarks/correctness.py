"""Correctness checks: every implementation against the plain float32 forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.baselines.naive import naive_logits, ordinary_members, vmap_ensemble
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.compiled_engine import engine_of
from benchmarks.workload import Plan, Workload, build_engine
from eulerlora.nn.method import RowDraws
from eulerlora.nn.rows import Rows
from eulerlora.settings import Draw

TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Check:
    """difference: largest difference of a probability. allowed: its tolerance."""

    name: str
    difference: float
    allowed: float


class WrongLogitsError(Exception):
    """An implementation differs from the plain forward pass by more than its tolerance."""


def checks(plan: Plan) -> list[Check]:
    """Returns the checks of our engine in every precision, of the baselines and of the device.

    The reference has deterministic logits for PEFT and stochastic logits for all others.
    """
    sizes, device = plan.sizes.large, plan.device
    load = Workload.random(sizes, min(2, plan.sizes.images), device)
    stochastic = plain_logits(load, load.rows, load.draws)
    members = ordinary_members(load.network)
    inputs, ensemble = (load.images, load.unstacked), vmap_ensemble(members, sizes.samples)
    engines = {
        "float32": build_engine(load.network, "float32"),
        "bfloat16": build_engine(load.network, "bfloat16"),
    }
    if plan.compiler is not None:
        engines["bfloat16, compiled"] = engine_of(plan).run
    logits = {name: engine(load.images, load.rows, load.draws) for name, engine in engines.items()}
    logits |= {
        "float32, naive loop": naive_logits(members, *inputs).flatten(0, 1),
        "float32, vmap ensemble": ensemble(*inputs).flatten(0, 1),
        "float32, plain on the CPU": _on_the_cpu(load),
    }
    return [
        *(_check(name, actual, stochastic) for name, actual in logits.items()),
        *_peft_checks(load),
    ]


def require(results: Sequence[Check]) -> None:
    """Raises WrongLogitsError with the names of the failed checks."""
    failed = [
        f"{check.name}: expected a difference of at most {check.allowed:g}, "
        f"got {check.difference:.2g}"
        for check in results
        if check.difference > check.allowed
    ]
    if failed:
        raise WrongLogitsError("; ".join(failed))


@torch.inference_mode()
def plain_logits(load: Workload, rows: Rows, draws: RowDraws) -> Tensor:
    """Returns the logits of the network's forward pass in float32 without any optimisation."""
    logits: Tensor = load.network(load.images, rows, draws)
    return logits


def _on_the_cpu(load: Workload) -> Tensor:
    device, cpu = load.images.device, torch.device("cpu")
    network = load.network.cpu()
    with torch.inference_mode():
        logits: Tensor = network(
            load.images.cpu(), load.rows.to(cpu), load.draws.to(load.images.cpu())
        )
    network.to(device)
    return logits


def _peft_checks(load: Workload) -> list[Check]:
    settings, images = load.network.settings, load.images
    rows = Rows.of([1] * len(images), settings.adapters).to(images.device)
    drawn = load.network.draw_rows([Draw()] * len(images)).to(images)
    expected = plain_logits(load, rows, drawn)
    peft = PeftVisionTransformer(load.network)
    return [
        _check("float32, PEFT, set_adapter loop", peft.adapter_by_adapter(images), expected),
        _check("float32, PEFT, mixed batch", peft.mixed_batch(images), expected),
    ]


def _check(name: str, actual: Tensor, expected: Tensor) -> Check:
    """Compares probabilities; NaN counts as a difference of 1."""
    probabilities = (
        logits.detach().cpu().double().softmax(dim=-1) for logits in (actual, expected)
    )
    first, second = probabilities
    largest = (first - second).abs().nan_to_num(nan=1.0).max().item()
    return Check(name=name, difference=largest, allowed=TOLERANCE[name.split(",", maxsplit=1)[0]])
