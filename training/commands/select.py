"""The command `eulerlora select`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import click

from eulerlora.commands import CHECKPOINT, check_output, configure_openmp, max_pixels_option
from eulerlora_client.commands.program import PATH
from eulerlora_contract.errors import DataError
from eulerlora_contract.output_files import open_output
from eulerlora_contract.printable import printable, write_csv_rows
from eulerlora_contract.progress import track
from training.commands.options import (
    check_samples,
    device_option,
    mode_option,
    precision_option,
    samples_option,
)

if TYPE_CHECKING:
    from eulerlora_contract.sampling import Mode, PrecisionChoice
    from training.evaluation.selection import Candidate

_CRITERIA = ("entropy", "mutual-information", "margin")
_COLUMNS = ("file", "order", "score", "label", "unfamiliar")
_LOCAL_FILES = "/data/local-files/?d="
"""Where Label Studio serves the files below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""
_LABEL, _IMAGE = "label", "image"
"""Names of the tags of Label Studio, to which predictions refer."""


@click.command(
    "select",
    epilog="\b\nExample:\n  eulerlora select checkpoint pictures --count 50 --csv next.csv",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--count", type=click.IntRange(1), required=True, help="Number of pictures.")
@click.option(
    "--by",
    "criterion",
    type=click.Choice(_CRITERIA),
    default="entropy",
    show_default=True,
    help="What makes an answer uncertain: the entropy of its probabilities, the mutual information "
    "of its trajectories, or a small margin between the two highest probabilities.",
)
@click.option(
    "--no-diversity",
    is_flag=True,
    help="Choose the highest scores, even if the pictures are alike.",
)
@click.option("--csv", "csv_file", type=PATH, help="Write a CSV file.")
@click.option("--label-studio", type=PATH, help="Write a JSON file of tasks for Label Studio.")
@mode_option
@samples_option
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the choice."
)
@precision_option("float32", "Predict")
@max_pixels_option
@device_option
def select_command(
    checkpoint: Path,
    folder: Path,
    count: int,
    criterion: str,
    no_diversity: bool,
    csv_file: Path | None,
    label_studio: Path | None,
    mode: Mode,
    samples: int | None,
    seed: int,
    precision: PrecisionChoice,
    device: str,
) -> None:
    """Choose the pictures below FOLDER to label next: those a model is uncertain about.

    Prints a table, the highest score first. Copies, and pictures of the checkpoint's training, are
    left out. An unfamiliar picture may be chosen; it has no label and no score.

    The columns of --csv: file, order, score, label, unfamiliar. A task of --label-studio is a
    picture with the model's label, for a project with the printed labelling interface.

    On HAM10000 no gain over a random choice is shown; the choice has more of the rare classes. The
    labels are for training: these pictures are harder than others, so do not measure a model or fit
    thresholds on them.

    A file that cannot be read is reported on stderr and the others are used; the exit status is
    then 1.
    """
    check_samples(mode, samples)
    configure_openmp()
    # These import torch.
    import numpy as np  # noqa: PLC0415

    from eulerlora.checkpoint.files import read_training_images  # noqa: PLC0415
    from eulerlora.images.files import EXTENSIONS  # noqa: PLC0415
    from eulerlora.model import EulerLoRA  # noqa: PLC0415
    from eulerlora_client.images import select_files  # noqa: PLC0415
    from training.evaluation.selection import most_uncertain, read_candidates, spread  # noqa: PLC0415

    def report(message: str) -> None:
        click.echo(printable(f"eulerlora: {message}", sys.stderr.encoding or "utf-8"), err=True)

    def report_failure(message: str) -> None:
        failures.append(message)
        report(message)

    failures: list[str] = []
    listed = select_files([folder], EXTENSIONS)
    for output in (csv_file, label_studio):
        if output is not None:
            check_output(output, (*listed.files, *checkpoint.glob("*")))
    if csv_file is not None and csv_file == label_studio:
        raise click.UsageError("expected another file for --label-studio than for --csv")
    for note in listed.notes:
        report(f"warning: {note}")
    model = EulerLoRA.load(checkpoint, device, precision)
    stored = read_training_images(checkpoint)
    if not stored:
        report("warning: the checkpoint does not record its training images; leave them out")
    candidates = list(
        read_candidates(
            model,
            track(listed.files, "pictures", "pictures", len(listed.files)),
            model.options(mode, samples),
            criterion,
            {digest for digests in stored.values() for digest in digests.tolist()},
            report_failure,
        )
    )
    scores = np.array([candidate.score for candidate in candidates])
    if no_diversity:
        indices = most_uncertain(scores, count)
    else:
        features = np.array([candidate.features for candidate in candidates])
        indices = spread(scores, features, count, seed)
    if not len(indices):
        raise DataError(
            f"{folder}: expected a readable picture that was not in the training and has a "
            f"{criterion} above 0, got none of {len(listed.files):,}"
        )
    chosen = [candidates[index] for index in indices]
    click.echo(_table(chosen))
    left_out = len(listed.files) - len(failures) - len(candidates)
    click.echo(
        f"{len(chosen):,} of {len(candidates):,} pictures by {criterion}; {left_out:,} others are "
        "copies or were in the training"
    )
    if csv_file is not None:
        with open_output(csv_file) as file:
            write_csv_rows(file, _COLUMNS, map(_csv_row, chosen, range(1, len(chosen) + 1)))
    if label_studio is not None:
        with open_output(label_studio) as file:
            version = f"{model.config.name} {model.revision}"
            json.dump(list(_tasks(chosen, folder, version)), file, indent=2)
        click.echo(f"labelling interface for {label_studio}:\n{_interface(model.classes)}")
    if failures:
        raise click.ClickException(
            f"{len(failures)} of {len(listed.files)} pictures could not be read"
        )


def _table(chosen: Sequence[Candidate]) -> str:
    from tabulate import tabulate  # noqa: PLC0415

    rows = [["", "file", "label", "score"]]
    for order, candidate in enumerate(chosen, start=1):
        shown = [candidate.label, f"{candidate.score:.3f}"]
        if candidate.unfamiliar:
            shown = ["unfamiliar", ""]
        rows.append([str(order), str(candidate.file), *shown])
    encoding = sys.stdout.encoding or "utf-8"  # None for io.StringIO
    cells = [[printable(cell, encoding) for cell in row] for row in rows]
    align = ("right", "left", "left", "right")
    return tabulate(cells, tablefmt="plain", disable_numparse=True, colalign=align)


def _csv_row(candidate: Candidate, order: int) -> list[object]:
    """A row of _COLUMNS; an unfamiliar picture has no figures, as in `eulerlora predict --csv`."""
    figures = [None, None] if candidate.unfamiliar else [candidate.score, candidate.label]
    return [candidate.file, order, *figures, candidate.unfamiliar]


def _tasks(chosen: Sequence[Candidate], folder: Path, version: str) -> Iterator[dict[str, Any]]:
    """Tasks in Label Studio's JSON format; an unfamiliar picture has no prediction.

    `path` is that of a `labels.csv` in the folder. `version`: of the model.
    """
    for order, candidate in enumerate(chosen, start=1):
        path = candidate.file.relative_to(folder)
        url = _LOCAL_FILES + quote(os.fsencode(Path(folder.resolve().name, path)))
        choice = {
            "from_name": _LABEL, "to_name": _IMAGE, "type": "choices",
            "value": {"choices": [candidate.label]},
        }  # fmt: skip
        prediction = {"model_version": version, "score": candidate.msp, "result": [choice]}
        yield {
            "data": {_IMAGE: url, "path": path.as_posix(), "order": order},
            "predictions": [] if candidate.unfamiliar else [prediction],
        }


def _interface(classes: Sequence[str]) -> str:
    """The labelling interface of a Label Studio project for the tasks."""
    choices = "".join(f"<Choice value={quoteattr(name)}/>" for name in classes)
    return (
        f'<View><Image name="{_IMAGE}" value="${_IMAGE}"/>'
        f'<Choices name="{_LABEL}" toName="{_IMAGE}">{choices}</Choices></View>'
    )
