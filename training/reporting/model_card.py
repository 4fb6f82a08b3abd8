"""The model card that goes with a checkpoint as its README.md."""

import re
from collections.abc import Iterator
from pathlib import Path

from eulerlora.atomic_files import whole_file
from eulerlora.checkpoint import read_config, stored_revision, write_card
from eulerlora.config import CheckpointConfig
from eulerlora.errors import DataError
from training.evaluation.report_schema import Report, read_report
from training.reporting.card_origin import pretraining, rebuilding, training_facts
from training.reporting.card_texts import LICENCES, Texts, texts_of
from training.reporting.pictures import RELIABILITY
from training.reporting.report import figure_sections, measured
from training.reporting.tables import intervals_note, listed, metrics_table

Section = tuple[str, str]
"""A title and Markdown."""

NAMED = LICENCES.keys() - {"imagefolder"}  # data sets that a recipe names by their kind


def leave_card(folder: Path, report_folder: Path, comparison: str = "") -> None:
    """Writes the card of the checkpoint in `folder`, and the picture in it, from a report.

    comparison: Markdown for a section on other methods. Raises DataError for a report of another
    checkpoint: the card says nothing that the report does not.
    """
    report = read_report(report_folder)
    if report.revision != stored_revision(folder):
        raise DataError(
            f"{report_folder}: is of revision {report.revision[:15]}..., "
            f"but {folder} is {stored_revision(folder)[:15]}...; evaluate it again"
        )
    with whole_file(folder / RELIABILITY) as partial:
        partial.write_bytes((report_folder / RELIABILITY).read_bytes())
    write_card(folder, model_card(read_config(folder), report, comparison))


def model_card(config: CheckpointConfig, report: Report | None, comparison: str = "") -> str:
    """Markdown: use and misuse, figures (where there is a report), limits, data, origin."""
    texts = texts_of(config.provenance["recipe"]["data"]["kind"])
    sections: list[Section] = [
        ("What it is for", texts.intended),
        ("What it must not be used for", _list(texts.misuses)),
        ("Classes", _list([f"`{each.name}`: {each.description}" for each in config.classes])),
        *([("Figures", "Not evaluated yet.")] if report is None else _figures(report)),
        *([("Comparison", _one_level_down(comparison))] if comparison else []),
        ("Limits", _list(texts.limits)),
        ("Data and licence", _data(config, texts)),
        ("Training: time and energy", training_facts(config)),
        ("How to rebuild it", rebuilding(config, report, compared=bool(comparison))),
    ]
    head = [f"# {config.name}", *([] if report is None else _missed(report)), _shape(config)]
    return "\n\n".join([*head, *(f"## {title}\n\n{text}" for title, text in sections)]) + "\n"


def _shape(config: CheckpointConfig) -> str:
    adapters, shape = config.adapters.settings, config.backbone.settings
    return (
        f"An EulerLoRA checkpoint: {adapters.adapters} adapters of rank {adapters.rank} on a "
        f"frozen Vision Transformer ({shape.layers} blocks of width {shape.width}, "
        f"{shape.image_size} x {shape.image_size} pixels, patches of {shape.patch_size})."
    )


def _figures(report: Report) -> Iterator[Section]:
    parts = [measured(report), metrics_table(report), intervals_note(report)]
    yield "Figures", "\n\n".join(parts)
    titles = " and ".join(each.title for each in report.modes)
    yield (
        "Calibration",
        f"![Reliability diagrams, {titles}]({RELIABILITY})\n\nA bar is the accuracy of the images "
        "whose top probability is in its bin; the hatched gap is how far their mean top "
        "probability is from it. Below, how many images each bin has; those of fewer than 10 are "
        "faint.",
    )
    yield from figure_sections(report)


def _missed(report: Report) -> list[str]:
    """A plain warning of the classes that no mode ever recognised; empty where there are none."""
    names = [
        f"`{name}`"
        for name in report.modes[0].classes
        if all(
            (found := each.classes[name].sensitivity) is not None and found.hits == 0
            for each in report.modes
        )
    ]
    return [f"**It recognised none of the test images of {listed(names, 'or')}.**"] if names else []


def _data(config: CheckpointConfig, texts: Texts) -> str:
    count = config.provenance.get("skipped", {}).get("count", 0)
    skipped = f"; {count:,} images were left out as unusable" if count else ""
    trained = f"Trained on {config.provenance['data']} (train part){skipped}. {texts.licence}"
    return "\n\n".join([trained, *_backbone_data(config)])


def _backbone_data(config: CheckpointConfig) -> Iterator[str]:
    """What the backbone was pretrained on, unless torchvision published it."""
    if config.backbone.published is not None:
        return
    origin = pretraining(config)
    if origin is None:
        yield "What its backbone was pretrained on is not known."
        return
    kinds = [each["kind"] for each in origin["recipe"]["data"]]
    licences = [LICENCES[each] for each in kinds if each in NAMED]
    yield " ".join([f"Its backbone was pretrained on {origin['data']}.", *licences])


def _list(items: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"- {each}" for each in items)


def _one_level_down(text: str) -> str:
    """Markdown whose headings have one more level, so that they fit below a section's."""
    return re.sub(r"^(#+ )", r"#\1", text.strip(), flags=re.MULTILINE)
