"""Where a checkpoint comes from, for its card: time, energy, and the commands that rebuild it."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eulerlora.config import CheckpointConfig, Provenance
from training.evaluation.report_schema import Report
from training.fit.progress import duration

ASSUMED_WATTS_A_CORE = 10
JOULES_A_KWH = 3.6e6


def training_facts(config: CheckpointConfig) -> str:
    """What backbone and adapters were trained with, for how long, and with how much energy."""
    facts, recipe = config.provenance, config.provenance["recipe"]
    adapters = facts["training"]
    lines = [
        f"Adapters: recipe `{recipe['name']}`, seed {facts['seed']}, commit {facts['commit']}, "
        f"{facts['date']}, on {facts['hardware']}: {_run(adapters)}; "
        f"{energy(adapters, adapters['seconds'], facts['hardware'])}.",
        *_outliers(facts),
        *_backbone(config),
        "All settings are in `config.json`, the OOD thresholds with their data too.",
    ]
    return "\n".join(f"- {each}" for each in lines)


def _outliers(facts: Mapping[str, Any]) -> Iterator[str]:
    if "outliers" in facts:
        shown, weight = facts["outliers"], facts["recipe"]["outliers"]["weight"]
        yield (
            f"Shown as pictures of none of its classes: {shown['images']:,} images of "
            f"{shown['data']}, each with a weight of {weight:g}. What it makes of other everyday "
            "pictures therefore says little of what it makes of pictures unlike both."
        )


def energy(facts: Mapping[str, Any], seconds: float, hardware: str) -> str:
    """Joules that counters gave, or an estimate that says it is one, or that none is known."""
    counted = facts.get("energy_joules")
    if counted:
        total = sum(counted.values()) / JOULES_A_KWH
        return f"{total:.3f} kWh counted by {', '.join(counted)}, other work on them included"
    threads = re.match(r"(\d+) CPU thread", hardware)
    if threads is None:
        return "energy not known"
    kwh = int(threads[1]) * ASSUMED_WATTS_A_CORE * seconds / JOULES_A_KWH
    return (
        f"about {kwh:.3f} kWh, an estimate, as no counter could be read: {hardware} "
        f"x {ASSUMED_WATTS_A_CORE} W x time"
    )


def rebuilding(config: CheckpointConfig, report: Report | None, compared: bool) -> str:
    """The commands that make the backbone, the checkpoint, its figures and this card again.

    compared: whether the card has a comparison, which is a file of its own.
    """
    recipe = config.provenance["recipe"]
    lines = [f"git checkout {config.provenance['commit']}"]
    given: list[str] = []
    place = "DIR is a folder with the data, as the recipe says"
    origin = pretraining(config)
    if origin is not None:
        pretrain = _command("pretrain", origin["recipe"], "backbone/", origin["seed"], ())
        lines = [f"git checkout {origin['commit']}", pretrain]
        if origin["commit"] != config.provenance["commit"]:
            lines.append(f"git checkout {config.provenance['commit']}")
        given = ["--set", "backbone.weights=$PWD/backbone/backbone.safetensors"]
    elif config.backbone.published is None:
        place += f"; BACKBONE the backbone's file, SHA-256 of its tensors {config.backbone.sha256}"
        given = ["--set", "backbone.weights=BACKBONE"]
    lines.append(_command("train", recipe, "run/", config.provenance["seed"], given))
    if report is not None:
        lines.append(f"eulerlora evaluate run/ --data DIR {_asked(report)} --out figures/")
        comparison = " --comparison comparison.md" if compared else ""
        lines.append(f"eulerlora card run/ --report figures/{comparison}")
    return (
        f"{place}.\n\n```\n" + "\n".join(lines) + "\n```"
        "\n\nOn a machine of the same kind that gives the same weights. `evaluate` on the weights "
        "here gives the figures above: pictures are asked about in fixed batches, each with draws "
        "from a seed of its own, and resampled and corrupted the same way every time."
    )


def pretraining(config: CheckpointConfig) -> Provenance | None:
    """What `eulerlora pretrain` wrote of the backbone; None of one that it did not make."""
    origin = config.backbone.provenance
    return origin if "stages" in origin else None


def _backbone(config: CheckpointConfig) -> Iterator[str]:
    if config.backbone.published:
        yield f"Backbone: torchvision's `{config.backbone.published}`, frozen."
        return
    origin = pretraining(config)
    if origin is None:
        yield "Backbone: from a file that does not say how its weights were made; frozen."
        return
    stages = ", then ".join(_run(stage) for stage in origin["stages"])
    seconds = sum(stage["seconds"] for stage in origin["stages"])
    hardware = origin["hardware"]
    top_one = ", ".join(
        f"top-1 {share:.3f} on the test part of {name}" for name, share in origin["top_one"].items()
    )
    yield (
        f"Backbone: recipe `{origin['recipe']['name']}` on {origin['data']}: {stages}, on "
        f"{hardware}; {energy(origin, seconds, hardware)}; {top_one}; frozen after that."
    )


def _command(
    command: str, recipe: Mapping[str, Any], out: str, seed: int | None, given: Sequence[str]
) -> str:
    """A training command as it was asked for. given: arguments in place of overrides like them."""
    keys = ("seed=", "backbone.weights=") if given else ("seed=",)
    file = recipe.get("file") or f"{recipe['name']}.toml"
    variant = ["--variant", recipe["variant"]] if recipe.get("variant") else []
    overrides = [
        part
        for each in recipe.get("overrides", ())
        if not each.startswith(keys)
        for part in ("--set", shlex.quote(each))
    ]
    seeded = [] if seed is None else ["--seed", str(seed)]
    words = ["eulerlora", command, f"training/recipes/{file}", "--data", "DIR", "--out", out]
    return " ".join([*words, *variant, *seeded, *overrides, *given])


def _asked(report: Report) -> str:
    """The options of the evaluation."""
    modes = [each.mode for each in report.modes]
    words = ["--mode", "both" if len(modes) > 1 else modes[0]]
    words += [word for each in report.modes if each.mode == "stoch"
              for word in ("--samples", str(each.samples))]  # fmt: skip
    for name, subset in report.ood_images.items():
        words += ["--ood", shlex.quote(f"DIR/{name}")]
        if subset.images < subset.of:
            words += ["--ood-images", str(subset.images)]
    return " ".join([*words, "--corrupted-images", str(report.corrupted.images)])


def _run(fitted: Mapping[str, Any]) -> str:
    return f"{fitted['steps']:,} steps in {duration(fitted['seconds'])}"
