"""Provenance section of the model card: training facts and the commands that reproduce it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig, Provenance
from eulerlora_client.progress import format_duration
from training.data.local_images import archive_names
from training.evaluation.report_schema import Report
from training.ood.sets import GENERATED
from training.recipe.file import RECIPES

REPRODUCIBILITY = (
    "The same machine type gives the same weights. `eulerlora evaluate` with these weights gives "
    "the results above: batches are fixed, and the seeds of samples, resamples and corruptions "
    "are deterministic."
)


def training_facts(config: CheckpointConfig) -> str:
    """Returns a Markdown list: recipe, hardware, steps and time of adapters and backbone."""
    facts, recipe = config.provenance, config.provenance["recipe"]
    trained = "Network" if whole_network(config) else "Adapters"
    lines = [
        f"{trained}: recipe `{recipe['name']}`, seed {facts['seed']}, commit {facts['commit']}, "
        f"{facts['date']}, on {facts['hardware']}: {_steps(facts['training'])}.",
        *_outliers(facts),
        *_backbone(config),
        "`config.json` contains all settings, and the OOD thresholds with their data.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def reproduction_steps(
    config: CheckpointConfig, report: Report | None, compared: bool, measured: bool = False
) -> str:
    """Returns the commands that reproduce backbone, checkpoint, results and card.

    compared, measured: True if the card has a comparison, or the performance of a policy, which
    come from separate files.
    """
    recipe = config.provenance["recipe"]
    lines = [f"git checkout {config.provenance['commit']}"]
    extra_arguments: list[str] = []
    placeholders = "DIR is a folder with the data that the recipe names"
    origin = pretraining(config)
    if origin is not None:
        pretrain = _command("pretrain", origin["recipe"], "backbone/", origin["seed"], ())
        lines = [f"git checkout {origin['commit']}", pretrain]
        if origin["commit"] != config.provenance["commit"]:
            lines.append(f"git checkout {config.provenance['commit']}")
        extra_arguments = ["--set", "backbone.weights=$PWD/backbone/backbone.safetensors"]
    elif config.backbone.published is None:
        placeholders += (
            f"; BACKBONE is the backbone file (SHA-256 of its tensors: {config.backbone.sha256})"
        )
        extra_arguments = ["--set", "backbone.weights=BACKBONE"]
    lines.append(_command("train", recipe, "run/", config.provenance["seed"], extra_arguments))
    if report is not None:
        options = _evaluation_options(report)
        lines.append(f"eulerlora evaluate run/ --data DIR {options} --out report/")
        comparison = " --comparison comparison.md" if compared else ""
        performance = " --performance performance.md" if measured else ""
        if measured:
            archives = " ".join(f"--archive {name}=DIR/{name}.tar" for name in archive_names())
            lines.append(f"eulerlora policy fit run/ --data DIR {archives}")
            lines.append("eulerlora policy show policy.toml --performance > performance.md")
        lines.append(f"eulerlora card run/ --report report/{comparison}{performance}")
    commands = "\n".join(lines)
    return f"{placeholders}.\n\n```\n{commands}\n```\n\n{REPRODUCIBILITY}"


def site_calibration(site: Mapping[str, Any]) -> str:
    """Returns Markdown on the local pictures that the thresholds were fitted on.

    site: `provenance["site"]`, written by `eulerlora site fit`.
    """
    lesions = ", ".join(f"{count} of `{name}`" for name, count in site["lesions"].items())
    unit = "lesions" if site["unit"] == "lesion" else "every image counts as a lesion"
    results = "\n".join(f"- {part}: {result}" for part, result in site["results"].items())
    return (
        "`eulerlora site fit` fitted this checkpoint to local pictures, "
        f"{site['data']}: {site['images']:,} images ({unit}: {lesions}).\n\n"
        f"{results}\n\nThe weights are those of revision {site['source']}. The results in other "
        "sections are on the data that they name, not on local pictures."
    )


def pretraining(config: CheckpointConfig) -> Provenance | None:
    """Returns the backbone's provenance from `eulerlora pretrain`, or None for other backbones."""
    origin = config.backbone.provenance
    return origin if "stages" in origin else None


def whole_network(config: CheckpointConfig) -> bool:
    """Returns True if all weights of the network were trained, not adapters alone."""
    return config.provenance.get("recipe", {}).get("whole_network") is not None


def _outliers(facts: Mapping[str, Any]) -> Iterator[str]:
    if "outliers" in facts:
        outliers, weight = facts["outliers"], facts["recipe"]["outliers"]["weight"]
        yield (
            f"Outlier exposure: {outliers['images']:,} images of {outliers['data']} as examples "
            f"of none of the classes, each with a loss weight of {weight:g}. The results on other "
            "everyday images therefore do not predict those on images unlike both."
        )


def _backbone(config: CheckpointConfig) -> Iterator[str]:
    if config.backbone.published:
        yield f"Backbone: torchvision's `{config.backbone.published}`, frozen."
        return
    kept = "trained with the head" if whole_network(config) else "frozen"
    imported = config.backbone.provenance.get("imported")
    if imported is not None:
        revision = f", revision {imported['revision']}" if imported["revision"] else ""
        yield (
            f"Backbone: imported from {imported['source']}{revision} ({imported['architecture']}; "
            f"licence: {imported['licence'] or 'not stated'}; SHA-256 of its weights: "
            f"{imported['sha256']}), {kept}."
        )
        return
    origin = pretraining(config)
    if origin is None:
        published = config.backbone.provenance.get("fine_tuned_from")
        start = "a file without a record of its training"
        yield f"Backbone: from {f'torchvision {published!r}' if published else start}; {kept}."
        return
    stages = ", then ".join(_steps(stage) for stage in origin["stages"])
    top_one = ", ".join(
        f"top-1 {share:.3f} on the test part of {name}" for name, share in origin["top_one"].items()
    )
    yield (
        f"Backbone: recipe `{origin['recipe']['name']}` on {origin['data']}: {stages}, on "
        f"{origin['hardware']}; {top_one}; {kept} afterwards."
    )


def _command(
    command: str,
    recipe: Mapping[str, Any],
    out: str,
    seed: int | None,
    extra_arguments: Sequence[str],
) -> str:
    """Returns a training command line; extra_arguments replace an override of the backbone.

    A packaged recipe has its path in the checkout, because names alone need a later commit.
    """
    replaced = ("seed=", "backbone.weights=") if extra_arguments else ("seed=",)
    file = recipe.get("file") or f"{recipe['name']}.toml"
    path = f"training/recipes/{file}" if (RECIPES / file).is_file() else file
    variant = ["--variant", recipe["variant"]] if recipe.get("variant") else []
    overrides = [
        word
        for override in recipe.get("overrides", ())
        if not override.startswith(replaced)
        for word in ("--set", shlex.quote(override))
    ]
    seed_option = [] if seed is None else ["--seed", str(seed)]
    words = ["eulerlora", command, path, "--data", "DIR", "--out", out]
    return " ".join([*words, *variant, *seed_option, *overrides, *extra_arguments])


def _evaluation_options(report: Report) -> str:
    modes = [mode.mode for mode in report.modes]
    words = ["--mode", "both" if len(modes) > 1 else modes[0]]
    for mode in report.modes:
        if mode.mode == "stoch":
            words += ["--samples", str(mode.samples)]
    words += [word for argument in _ood_arguments(report) for word in ("--ood", argument)]
    limited = {facts.used.images for facts in report.ood_sets.values() if facts.used.limited}
    if limited:
        words += ["--ood-images", str(max(limited))]
    return " ".join([*words, "--corrupted-images", str(report.corrupted.images)])


def _ood_arguments(report: Report) -> list[str]:
    """Returns the arguments of `--ood` that name the sets of a report."""
    generated = {name for name, facts in report.ood_sets.items() if facts.generated}
    arguments = ["generated"] if generated == GENERATED.keys() else sorted(generated)
    return arguments + [
        shlex.quote(f"{facts.group}:DIR/{name}")
        for name, facts in report.ood_sets.items()
        if not facts.generated
    ]


def _steps(stage: Mapping[str, Any]) -> str:
    return f"{stage['steps']:,} steps in {format_duration(stage['seconds'])}"
