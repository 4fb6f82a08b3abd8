"""Every way to the logits next to the plain float32 forward pass: a wrong one is not timed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.baselines.engine import engine
from benchmarks.baselines.naive import naive_logits, ordinary_members
from benchmarks.baselines.peft import PeftVisionTransformer
from benchmarks.baselines.vmap_ensemble import vmap_ensemble
from benchmarks.measurement.workload import Plan, Workload
from eulerlora.coefficients import trajectory_coefficients
from eulerlora.rows import Rows
from eulerlora.settings import Draw, Settings

TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}


class WrongLogitsError(Exception):
    """A way to the logits is further from the plain one than its precision explains."""


class Check(Settings):
    """What came of one way. difference: the largest of any probability. allowed: its bound."""

    name: str
    difference: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within its bound."""
        return self.difference <= self.allowed


def checks(plan: Plan) -> list[Check]:
    """Our engine in every precision, the baselines, and the device itself.

    Deterministic logits are the reference for PEFT, stochastic ones for all others.
    """
    sizes, device = plan.sizes.large, plan.device
    load = Workload.random(sizes, min(2, plan.sizes.images), device)
    stochastic = plain_logits(load, load.rows, load.coefficients)
    members = ordinary_members(load.network)
    own, ensemble = (load.images, load.own), vmap_ensemble(members, sizes.samples)
    fast = {
        "float32": engine(load.network, "float32"),
        "bfloat16": engine(load.network, "bfloat16"),
    }
    if plan.compiler is not None:
        fast["bfloat16, compiled"] = engine(load.network, "bfloat16", plan.compiler)
    found = {name: ours(load.images, load.rows, load.coefficients) for name, ours in fast.items()}
    found |= {
        "float32, naive loop": naive_logits(members, *own).flatten(0, 1),
        "float32, vmap ensemble": ensemble(*own).flatten(0, 1),
        "float32, plain on the CPU": _on_the_cpu(load),
    }
    return [
        *(_check(name, logits, stochastic) for name, logits in found.items()),
        *_peft_checks(load, sizes.backbone.layers),
    ]


def require(results: Sequence[Check]) -> None:
    """Raises WrongLogitsError that names every check which did not pass."""
    failed = [
        f"{each.name}: probabilities differ by {each.difference:.2g}, allowed {each.allowed:g}"
        for each in results
        if not each.passed
    ]
    if failed:
        raise WrongLogitsError("; ".join(failed))


@torch.inference_mode()
def plain_logits(load: Workload, rows: Rows, coefficients: Tensor) -> Tensor:
    """The network's own forward pass in float32, nothing fused, converted or compiled."""
    logits: Tensor = load.network(load.images, rows, coefficients)
    return logits


def _on_the_cpu(load: Workload) -> Tensor:
    device, cpu = load.images.device, torch.device("cpu")
    network = load.network.cpu()
    with torch.inference_mode():
        logits: Tensor = network(load.images.cpu(), load.rows.to(cpu), load.coefficients.cpu())
    network.to(device)
    return logits


def _peft_checks(load: Workload, blocks: int) -> list[Check]:
    settings, images = load.network.settings, load.images
    rows = Rows.of([1] * len(images), settings.adapters).to(images.device)
    drawn = [trajectory_coefficients(Draw(), blocks, settings)] * len(images)
    expected = plain_logits(load, rows, torch.cat(drawn).to(images.device))
    peft = PeftVisionTransformer(load.network)
    return [
        _check("float32, PEFT, set_adapter loop", peft.one_after_another(images), expected),
        _check("float32, PEFT, mixed batch", peft.mixed_batch(images), expected),
    ]


def _check(name: str, found: Tensor, expected: Tensor) -> Check:
    """Not-a-number counts as the largest difference there is."""
    probabilities = (each.detach().cpu().double().softmax(dim=-1) for each in (found, expected))
    first, second = probabilities
    worst = (first - second).abs().nan_to_num(nan=1.0).max().item()
    return Check(name=name, difference=worst, allowed=TOLERANCE[name.split(",", maxsplit=1)[0]])
