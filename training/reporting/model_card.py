"""The model card of a checkpoint, its README.md, and the shorter model facts label."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import read_config, stored_revision, write_card
from eulerlora.errors import DataError
from eulerlora.methods.registry import DEFAULT_METHOD, method_type
from eulerlora_client.output_files import atomic_write
from training.evaluation.report_schema import Report, read_report
from training.reporting.card_origin import (
    pretraining,
    reproduction_steps,
    site_calibration,
    training_facts,
    whole_network,
)
from training.reporting.card_texts import LICENCES, CardTexts, front_matter, texts_of
from training.reporting.chart_files import RELIABILITY
from training.reporting.report import result_sections, summary_sections
from training.reporting.tables import enumeration, metrics_table

Section = tuple[str, str]
"""A title and Markdown."""

WEAKNESS = (
    "What the triage policy makes of this model's answers, on images like those of the training "
    "and on images of other clinics and cameras. The urgent threshold was fitted on the former "
    "only; expect the figures of other images to differ again."
)

DIRECTIONS = (
    "Before any use, evaluate it on pictures of your own whose truth is known (`eulerlora "
    "evaluate`), and fit its thresholds to them (`eulerlora site fit`). A person who can judge the "
    "picture decides; the output is one input among others."
)
STOP = (
    "when the shift monitor has an alarm, when confirmed outcomes show more misses than stated, or "
    "after a change of camera, population or model revision, until it is evaluated again."
)
LICENSED_KINDS = LICENCES.keys() - {"imagefolder"}


def write_model_card(
    folder: Path, report_folder: Path, comparison: str = "", performance: str = ""
) -> None:
    """Writes the model card of the checkpoint in `folder`, and its chart, from a report.

    comparison: Markdown of a section on other methods. performance: Markdown of
    `eulerlora policy show --performance`. Raises DataError for a report or a performance of another
    revision of the checkpoint.
    """
    report = _read_report_on(folder, report_folder, performance)
    with atomic_write(folder / RELIABILITY) as partial:
        partial.write_bytes((report_folder / RELIABILITY).read_bytes())
    write_card(folder, model_card(read_config(folder), report, comparison, performance))


def _read_report_on(folder: Path, report_folder: Path, performance: str) -> Report:
    """Returns a report. Raises DataError if it, or the performance, is on another revision."""
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
    return report


def model_card(
    config: CheckpointConfig, report: Report | None, comparison: str = "", performance: str = ""
) -> str:
    """Returns front matter and Markdown: use and misuse, results (if there is a report), limits,
    data, origin.

    performance: as in `write_model_card`; if given, it is the first section.
    """
    texts = texts_of(config.provenance["recipe"]["data"]["kind"])
    sections: list[Section] = [
        *([("Known weakness", f"{WEAKNESS}\n\n{performance.strip()}")] if performance else []),
        *site_sections(config),
        ("Intended use", texts.intended),
        ("Out-of-scope use", "Do not use the model for:\n\n" + _list(texts.misuses)),
        ("Classes", _list([f"`{label.name}`: {label.description}" for label in config.classes])),
        *([("Results", "Not evaluated yet.")] if report is None else _results(report)),
        *([("Comparison", _demote_headings(comparison))] if comparison else []),
        ("Limits", _list(texts.limits)),
        ("Data and licence", _data(config, texts)),
        ("Training", training_facts(config)),
        ("Reproduction", reproduction_steps(config, report, bool(comparison), bool(performance))),
    ]
    head = [
        f"{front_matter(config, report)}\n# {config.name}",
        *([] if report is None else _missed(report)),
        _shape(config),
    ]
    return "\n\n".join([*head, *(f"## {title}\n\n{text}" for title, text in sections)]) + "\n"


def model_facts(config: CheckpointConfig, report: Report, performance: str = "") -> str:
    """Returns Markdown in the form of a model facts label (Sendak et al., npj Digit. Med. 3, 2020).

    performance: as in `write_model_card`.
    """
    texts, facts = texts_of(config.provenance["recipe"]["data"]["kind"]), config.provenance
    mechanism = [
        f"Output: a probability for each of the classes {enumeration(_names(config), 'and')}; "
        "entropy and mutual information; flags for images unlike the training images",
        "Time of prediction: when an image is sent; nothing else is known about the patient",
        f"Type: {_shape(config)}",
        f"Training data: {facts['data']} (train part), {facts['date']}",
    ]
    validation = [_results_line(report), metrics_table(report), *_missed(report)]
    if performance:
        validation.append(f"{WEAKNESS}\n\n{performance.strip()}")
    sections: list[Section] = [
        ("Summary", texts.intended),
        ("Mechanism", _list(mechanism)),
        ("Validation and performance", "\n\n".join(validation)),
        ("Uses and directions", f"{texts.intended}\n\n{DIRECTIONS}"),
        ("Warnings", "Do not use the model for:\n\n" + _list(texts.misuses)),
        ("Generalizability", _list(texts.limits)),
        ("Stop using it", STOP),
        ("Other information", f"{texts.licence} The model card (README.md) has all results."),
    ]
    head = f"# Model facts: {config.name}\n\nRevision {report.revision}. Not approved by anyone."
    return "\n\n".join([head, *(f"## {title}\n\n{text}" for title, text in sections)]) + "\n"


def read_model_facts(folder: Path, report_folder: Path, performance: str = "") -> str:
    """Returns the model facts of the checkpoint in `folder`, as `write_model_card` the card."""
    report = _read_report_on(folder, report_folder, performance)
    return model_facts(read_config(folder), report, performance)


def _names(config: CheckpointConfig) -> list[str]:
    return [f"`{label.name}` ({label.description})" for label in config.classes]


def _results_line(report: Report) -> str:
    return (
        f"On {report.images:,} test images of {report.data}; the share of each class is that of an "
        "archive, not of a clinic."
    )


def site_sections(config: CheckpointConfig) -> list[Section]:
    """Returns the section on local pictures, or an empty list if nothing was fitted on such."""
    site = config.provenance.get("site")
    return [] if site is None else [("Site calibration", site_calibration(site))]


def _shape(config: CheckpointConfig) -> str:
    adapters, shape = config.adapters.settings, config.backbone.settings
    kind = method_type(config.method)
    trained = f"{kind.members_text(adapters)} on a frozen"
    if whole_network(config):
        trained = "all weights of a"
    law = kind.law_text(config.method, adapters)
    method = "" if config.method == DEFAULT_METHOD else f" Method: {law} (docs/methods.md)."
    return (
        f"An EulerLoRA checkpoint: {trained} Vision Transformer ({shape.layers} blocks of width "
        f"{shape.width}, {shape.image_size} x {shape.image_size} pixels, patches of "
        f"{shape.patch_size})." + method
    )


def _results(report: Report) -> Iterator[Section]:
    yield "Results", "\n\n".join(summary_sections(report))
    titles = " and ".join(mode.title for mode in report.modes)
    yield (
        "Calibration",
        f"![Reliability diagrams, {titles}]({RELIABILITY})\n\nEach bar is the accuracy of the "
        "images whose top probability lies in the bin. The hatched area is the gap to their mean "
        "top probability. The lower chart shows the number of images in each bin; bins of fewer "
        "than 10 images are faint.",
    )
    yield from result_sections(report)


def _missed(report: Report) -> list[str]:
    """Returns a warning about classes with sensitivity 0 in all modes, or an empty list."""
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


def _data(config: CheckpointConfig, texts: CardTexts) -> str:
    count = config.provenance.get("skipped", {}).get("count", 0)
    skipped = f"; {count:,} unusable images were left out" if count else ""
    trained = f"Trained on {config.provenance['data']} (train part){skipped}. {texts.licence}"
    return "\n\n".join([trained, *_backbone_data(config)])


def _backbone_data(config: CheckpointConfig) -> Iterator[str]:
    """Yields the pretraining data of a backbone that torchvision did not publish."""
    if config.backbone.published is not None:
        return
    origin = pretraining(config)
    if origin is None:
        yield "The pretraining data of the backbone is not known."
        return
    recipe = origin["recipe"]
    licences = dict.fromkeys(
        licence
        for data in [*recipe["data"], *recipe.get("unlabelled", [])]
        if (licence := _licence(data["kind"], data["path"])) is not None
    )
    yield " ".join([f"The backbone was pretrained on {origin['data']}.", *licences])


def _licence(kind: str, path: str) -> str | None:
    """Returns the licence of a data set of pretraining; None if it is not known."""
    return LICENCES.get(kind if kind in LICENSED_KINDS else PurePosixPath(path).stem)


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _demote_headings(text: str) -> str:
    """Returns Markdown with every heading one level lower, to fit into a section."""
    return re.sub(r"^(#+ )", r"#\1", text.strip(), flags=re.MULTILINE)
