"""Correctness checks: every implementation against the plain float32 forward pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.baselines.engine import build_engine
from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from benchmarks.inference.captured_engine import captured_engine
from benchmarks.measurement.result import Check
from benchmarks.measurement.workload import Plan, Workload
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.settings import Draw

TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}


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
        engines["bfloat16, compiled"] = captured_engine(sizes, device, plan.compiler).run
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
        if not check.passed
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
