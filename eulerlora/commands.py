"""The commands `predict`, `backbone`, `convert`, `export`, `import` and `sign`.

Importing this module is fast, because `--help` imports it: torch is imported when a command runs.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eulerlora.cpu import available_cpus
from eulerlora.images import MAX_PIXELS_VARIABLE
from eulerlora_contract.errors import ImageError, OutputPathError
from eulerlora_contract.output_files import check_writable, open_output
from eulerlora_contract.printable import printable, write_csv_rows
from eulerlora_contract.processes import protect_memory
from eulerlora_contract.program import PATH, SHARE, SamplesParameter
from eulerlora_contract.sampling import AUTO, PRECISIONS, RUNTIMES, VIEWS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from eulerlora.exchange.folders import ImportedBackbone
    from eulerlora.model import EulerLoRA
    from eulerlora.plugins.peft_export import TransformersVersion
    from eulerlora_contract.answers import PredictionWarning
    from eulerlora_contract.sampling import Auto, Mode, PrecisionChoice, RuntimeChoice, Views

DEFAULT_NAME = "default"
"""The embedded checkpoint, wherever a checkpoint is expected; `./default` is a folder."""

PRECISION_CHOICES = (AUTO, *PRECISIONS)
_BATCH_FILES = 32
"""Number of files that are predicted before their lines are written."""
_COLUMNS = (
    "label",
    "mode",
    "samples",
    "sampler",
    "views",
    "precision",
    "runtime",
    "msp",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "ood",
    "energy",
    "feature_distance",
    "unfamiliar",
)
_VERSIONS: "dict[str, TransformersVersion]" = {"4": 4, "5": 5}

_WAIT_POLICY = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "10000"}
"""The policy "active" spins 1000 times. The count is for machines with at least as many cores as
threads, where "active" alone spins without end.
"""
_THREADS = "OMP_NUM_THREADS"


def configure_openmp() -> None:
    """Sets the environment variables of `_WAIT_POLICY`; call it before the first import of torch.

    OpenMP reads them once, when it is loaded. Also sets the number of threads if a quota of the
    container is below the number of CPUs. Changes nothing that the user has set.
    """
    if os.environ.keys().isdisjoint(_WAIT_POLICY):
        os.environ.update(_WAIT_POLICY)
    cpus = available_cpus()
    if cpus < len(os.sched_getaffinity(0)):
        os.environ.setdefault(_THREADS, str(cpus))


class _CheckpointParameter(click.Path):
    """The folder of a checkpoint to read, or `default`."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value != DEFAULT_NAME:
            return super().convert(value, param, ctx)
        configure_openmp()
        from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT  # noqa: PLC0415 - imports torch

        return DEFAULT_CHECKPOINT


CHECKPOINT = _CheckpointParameter()


class _ImagesParameter(click.Path):
    """An image file, a folder, or a pattern of such, which the shell has not expanded."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, exists=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if has_magic(str(value)) and not Path(value).exists():
            return Path(value)
        return super().convert(value, param, ctx)


def views_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--views",
        type=click.Choice([str(views) for views in VIEWS]),
        callback=lambda _, __, value: value and int(value),
        help=text,
    )


def _set_max_pixels(_context: click.Context, _option: click.Parameter, pixels: int | None) -> None:
    if pixels is not None:
        os.environ[MAX_PIXELS_VARIABLE] = str(pixels)  # also of worker processes


def runtime_option(default: "RuntimeChoice") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--runtime",
        type=click.Choice((AUTO, *RUNTIMES)),
        default=default,
        show_default=True,
        help="Library that runs the network; auto: openvino if it is installed and faster here.",
    )


max_pixels_option = click.option(
    "--max-pixels",
    type=click.IntRange(min=1),
    expose_value=False,
    callback=_set_max_pixels,
    help="Read images of up to so many pixels. Default: 24,000,000, for a JPEG 64,000,000.",
)


@click.command(
    "predict",
    epilog="\b\nExample:\n  eulerlora predict checkpoint pictures/ --mode stoch --csv rows.csv",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("images", metavar="IMAGES...", nargs=-1, type=_ImagesParameter())
@click.option("--mode", type=click.Choice(["det", "stoch"]), default="det", show_default=True)
@click.option(
    "--samples",
    type=SamplesParameter(),
    help="Per adapter, only with stoch; default 4. auto: 1, 2 or 4, until the label and the flags "
    "are settled.",
)
@click.option("--csv", "csv_file", type=PATH, help="Write a CSV file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Default: derived from the image's content."
)
@views_option(
    "Flips and turns of an image that its trajectories share between them. Default: the "
    "checkpoint's with stoch, 1 with det; other numbers are not calibrated."
)
@click.option(
    "--coverage",
    type=SHARE,
    help="Add the prediction set with this probability, such as 0.9, if the checkpoint is "
    "calibrated for it.",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISION_CHOICES),
    default="float32",
    show_default=True,
    help="Data type of the matrix products; auto: bfloat16 if it is fast and changes little.",
)
@runtime_option("torch")  # loading by another takes longer than a few images
@max_pixels_option
def predict_command(
    checkpoint: Path,
    images: tuple[Path, ...],
    mode: "Mode",
    samples: "int | Auto | None",
    seed: int | None,
    coverage: float | None,
    views: "Views | None",
    as_json: bool,
    csv_file: Path | None,
    device: str,
    precision: "PrecisionChoice",
    runtime: "RuntimeChoice",
) -> None:
    """Predict the classes of image files, or of all images below folders. A quoted pattern such as
    'a/*.jpg' stands for the files that it matches.

    Prints a line for each file: its most probable class, the probability of this class (MSP), the
    entropy H in nats, and flags. An unfamiliar image has no class and no figures, which are only in
    the output of --json.

    The columns of --csv: file, label, mode, samples, sampler, views, precision, runtime, msp,
    entropy, expected_entropy, mutual_information (in nats), ood, energy, feature_distance,
    unfamiliar, warnings, and p_CLASS for each class; with --samples auto also rows; with --coverage
    also prediction_set.

    A file that cannot be read is reported on stderr and the other files are predicted; the exit
    status is then 1.
    """
    configure_openmp()
    if mode != "stoch" and samples is not None:
        raise click.UsageError("--samples requires --mode stoch")
    if not images:
        raise click.UsageError(
            f"expected a checkpoint and images, got {checkpoint} only; "
            "`eulerlora predict default IMAGE` takes the embedded checkpoint"
        )
    if as_json and csv_file is not None:
        raise click.UsageError("expected one of --json and --csv, got both")

    from eulerlora.answer import summary_line  # noqa: PLC0415 - imports torch
    from eulerlora.images.files import EXTENSIONS, image_files  # noqa: PLC0415 - imports torch
    from eulerlora.model import EulerLoRA  # noqa: PLC0415 - imports torch
    from eulerlora_contract.image_folders import select_files  # noqa: PLC0415 - imports pydantic

    paths = [one for path in images for one in ((path,) if path.exists() else image_files(path))]
    selection = select_files(paths, EXTENSIONS)
    files = selection.files
    if csv_file is not None:
        _check_output(csv_file, (*files, *checkpoint.glob("*")))
    model = EulerLoRA.load(checkpoint, device, precision, runtime=runtime)
    failures: list[str] = []

    def report(message: str) -> None:
        click.echo(printable(f"eulerlora: {message}", sys.stderr.encoding or "utf-8"), err=True)

    def report_failure(message: str) -> None:
        failures.append(message)
        report(message)

    def report_warning(message: str) -> None:
        report(f"warning: {message}")

    for note in selection.notes:
        report_warning(note)
    options = {"mode": mode, "samples": samples, "seed": seed, "views": views, "coverage": coverage}
    # no bar between the lines of answers on a terminal
    hidden = not sys.stderr.isatty() or (csv_file is None and sys.stdout.isatty())
    with click.progressbar(files, hidden=hidden, file=sys.stderr) as remaining:
        answers = _predict_files(model, remaining, options, report_failure, report_warning)
        if csv_file is not None:
            auto = ("rows",) if samples == AUTO else ()
            sets = () if coverage is None else ("prediction_set",)
            _write_answers(csv_file, answers, [*_COLUMNS, *auto, *sets], model.classes)
        else:
            encoding = sys.stdout.encoding or "utf-8"  # None for io.StringIO
            for answer in answers:
                line = f"{answer['file']}: {summary_line(answer)}"
                click.echo(json.dumps(answer) if as_json else printable(line, encoding))
    if failures:
        raise click.ClickException(f"{len(failures)} of {len(files)} images could not be read")


def _check_output(path: Path, inputs: Iterable[Path]) -> None:
    """Raises OutputPathError if a file cannot be written or is one of the inputs."""
    check_writable(path)
    if path.exists() and any(file.exists() and file.samefile(path) for file in inputs):
        raise OutputPathError(f"{path} is an input file and cannot be the output file")


def check_outside(path: Path, data: Path) -> None:
    """Checks that a file can be written and is none of a folder of data.

    Raises:
        OutputPathError: Otherwise.
    """
    check_writable(path)
    if path.exists() and path.resolve().is_relative_to(data.resolve()):
        raise OutputPathError(f"{path} is a file of the data and cannot be the output file")


def _predict_files(
    model: "EulerLoRA",
    files: Iterable[Path],
    options: Mapping[str, Any],
    on_failure: Callable[[str], None],
    on_warning: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """The answer for every readable file, in order, as values of JSON. Raises NonFiniteError.

    It has the file, the fields of `Predictions.response_fields`, and the conversions of the
    image as warnings.

    `options`: of `EulerLoRA.predict`. `on_failure`: called with the reason for every file that
    cannot be read. `on_warning`: called once with every other warning, before the first file with
    that of a missing threshold, and with every part of a file that is ignored.
    """
    from pydantic_core import to_jsonable_python  # noqa: PLC0415

    from eulerlora.images.files import read_image  # noqa: PLC0415 - imports torch
    from eulerlora_contract.answers import IGNORED_PARTS  # noqa: PLC0415
    from eulerlora_contract.checkpoints import missing_threshold  # noqa: PLC0415

    remaining, warned = iter(files), set[str]()
    chosen = model.options(options["mode"], options["samples"], views=options["views"])
    if reason := missing_threshold(model.config.thresholds, chosen):
        on_warning(reason)  # before the work
        warned.add(reason)
    side = model.config.preprocessing.input_side
    batch: list[tuple[Path, tuple[PredictionWarning, ...]]] = []

    def readable() -> "Iterator[npt.NDArray[np.uint8]]":
        """Fills the batch; there is one image in memory at a time."""
        for file in remaining:
            try:
                image = read_image(file, str(file), side)
            except ImageError as error:
                on_failure(str(error))
                continue
            batch.append((file, image.warnings))
            yield image.pixels.permute(1, 2, 0).numpy()
            if len(batch) == _BATCH_FILES:
                return

    while True:
        batch.clear()
        prediction = model.predict(readable(), **options)
        if not batch:
            return
        messages = {warning.message for warning in prediction.warnings}
        for message in sorted(messages - warned):
            on_warning(message)
        warned |= messages
        for index, (file, warnings) in enumerate(batch):
            for ignored in warnings:
                if ignored.code in IGNORED_PARTS:
                    on_warning(f"{file}: {ignored.message}")
            fields = prediction.response_fields(index)
            yield to_jsonable_python({"file": str(file), **fields, "warnings": warnings})


def _write_answers(
    path: Path, answers: Iterable[Mapping[str, Any]], columns: Sequence[str], classes: Sequence[str]
) -> None:
    """Writes a CSV file with one row per answer; a regular file is complete or unchanged.

    Lists are separated by `; `, and missing values are empty. No cell is a formula of a
    spreadsheet. On a terminal, names of files are escaped. `columns` are between the file and the
    warnings. Raises StorageError.
    """
    header = ["file", *columns, "warnings", *(f"p_{name}" for name in classes)]
    with open_output(path) as file:
        write_csv_rows(file, header, (_csv_row(answer, columns, classes) for answer in answers))


def _csv_row(
    answer: Mapping[str, Any], columns: Sequence[str], classes: Sequence[str]
) -> list[object]:
    from eulerlora.answer import table_row  # noqa: PLC0415 - imports torch
    from eulerlora_contract.answers import shown_fields  # noqa: PLC0415 - imports pydantic

    values = table_row(shown_fields(answer))
    return [
        answer["file"],
        *(_cell(values.get(column)) for column in columns),
        _cell([warning["message"] for warning in answer["warnings"]]),
        *(values.get(f"p_{label}") for label in classes),
    ]


def _cell(value: object) -> object:
    return "; ".join(value) if isinstance(value, list) else value


image_size_option = click.option(
    "--image-size",
    type=click.IntRange(1),
    help="In pixels; that of the source's preprocessing by default.",
)


_USUAL_SIDE = 224
"""The image size, in pixels, for which most Vision Transformers are published."""


@click.group("backbone")
def backbone_command() -> None:
    """Import Vision Transformers of other libraries as frozen backbones."""


@backbone_command.command(
    "import",
    epilog="\b\nExample:\n  eulerlora backbone import timm/vit_small_patch16_224.dino --out new",
)
@click.argument("source")
@click.option("--out", required=True, type=PATH, help="A new folder.")
@image_size_option
def _import_backbone_command(source: str, out: Path, image_size: int | None) -> None:
    """Convert the model SOURCE to a backbone file in the folder --out.

    SOURCE is a folder that transformers, timm or open_clip saved, or a repository of the Hugging
    Face Hub, ORGANISATION/NAME or ORGANISATION/NAME@REVISION.
    """
    # These import torch.
    from eulerlora.exchange.importing import find_source, import_backbone  # noqa: PLC0415

    echo_imported(import_backbone(find_source(source), out, image_size), out)


def echo_imported(imported: "ImportedBackbone", out: Path) -> None:
    """Prints what a backbone was converted from, its shape and input, and how to train on it."""
    shape, input_ = imported.backbone.settings, imported.preprocessing
    click.echo(f"{imported.source.name}: {imported.architecture}")
    click.echo(f"licence: {imported.source.licence or 'not stated by the source'}")
    click.echo(f"SHA-256 of the weights: {imported.sha256}")
    click.echo(
        f"{shape.layers} blocks of width {shape.width}, patches of {shape.patch_size}, "
        f"{input_.size} x {input_.size} pixels, {shape.tokens:,} tokens for each row"
    )
    side = _USUAL_SIDE - _USUAL_SIDE % shape.patch_size
    usual = shape.model_copy(update={"image_size": side})
    if shape.tokens > 2 * usual.tokens:
        click.echo(
            f"the time of a row grows with its tokens: --image-size {side} has {usual.tokens}"
        )
    if not imported.stated_input:
        click.echo("the source states no preprocessing: images are resized, not normalised")
    click.echo(f"train with: --set backbone.weights={out.resolve() / 'backbone.safetensors'}")


@click.command("sign", epilog="\b\nExample:\n  eulerlora sign checkpoint/ --key signing.key")
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--key", required=True, type=PATH, help="PEM file of a private EC key.")
def sign_command(checkpoint: Path, key: Path) -> None:
    """Sign all files of a checkpoint, for `eulerlora serve --require-signature`.

    Writes model.sig, in the format of OpenSSF Model Signing. Sign again after `eulerlora card`, and
    sign each new checkpoint, such as that of `eulerlora calibrate`.
    """
    from eulerlora.checkpoint.signature import SIGNATURE_FILE, sign  # noqa: PLC0415

    with suppress(OSError):
        protect_memory()  # the private key
    sign(checkpoint, key)
    click.echo(checkpoint / SIGNATURE_FILE)


@click.command("convert", epilog="\b\nExample:\n  eulerlora convert pictures --out pictures-png")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", required=True, type=PATH, help="A new folder.")
def convert_command(folder: Path, out: Path) -> None:
    """Copy a folder of pictures with its BMP and TIFF files as PNG, which models read.

    A converted file gets the ending .png after its name; labels.csv needs no change. Pixels, colour
    profile and orientation are kept; what is not is printed. A file that cannot be converted is
    reported on stderr, and the exit status is then 1.
    """
    from eulerlora.images.convert import convert_folder  # noqa: PLC0415 - imports torch
    from eulerlora_contract.output_files import check_free  # noqa: PLC0415

    check_free(out)
    done = convert_folder(folder, out)
    for change in done.changes:
        click.echo(printable(change))
    click.echo(f"{out}: {len(done.converted):,} files as PNG, {done.copied:,} others copied")
    for failure in done.failures:
        click.echo(printable(f"eulerlora: {failure}", sys.stderr.encoding or "utf-8"), err=True)
    if done.failures:
        raise click.ClickException(f"{len(done.failures)} files are not in {out}")


@click.command(
    "export", epilog="\b\nExample:\n  eulerlora export checkpoint --format onnx --out onnx"
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.option(
    "--format", "format_", type=click.Choice(["peft", "torchvision", "onnx"]), required=True
)
@click.option("--out", required=True, type=PATH, help="A new folder.")
@click.option(
    "--transformers",
    "version",
    type=click.Choice(list(_VERSIONS)),
    default="5",
    show_default=True,
    help="Version of transformers whose names the adapters have, for --format peft.",
)
@click.option(
    "--sampled",
    is_flag=True,
    help="For --format peft: adapters of the PEFT method eulerlora.peft, with mode stoch.",
)
def export_command(checkpoint: Path, format_: str, out: Path, version: str, sampled: bool) -> None:
    """Write a checkpoint in mode det for another library.

    onnx holds every backbone, torchvision and peft only those that these libraries have. Only peft
    with --sampled expresses the stochastic mode.
    """
    if sampled and format_ != "peft":
        raise click.UsageError("--sampled requires --format peft")
    configure_openmp()
    # These import torch.
    from eulerlora.checkpoint.files import load_checkpoint  # noqa: PLC0415
    from eulerlora.exchange.exporting import export_torchvision  # noqa: PLC0415
    from eulerlora_contract.output_files import check_free, new_folder  # noqa: PLC0415

    check_free(out)
    loaded = load_checkpoint(checkpoint)
    with new_folder(out) as partial:
        if format_ == "peft":
            from eulerlora.plugins.peft_export import export_peft  # noqa: PLC0415

            export_peft(loaded, partial, _VERSIONS[version], sampled)
        elif format_ == "torchvision":
            export_torchvision(loaded, partial)
        else:
            from eulerlora.plugins.onnx_export import export_onnx  # noqa: PLC0415

            difference = export_onnx(loaded, partial)
            click.echo(f"largest difference of a probability in ONNX Runtime: {difference:.1e}")
    modes = "modes det and stoch" if sampled else "mode det"
    click.echo(f"{modes} in {out}; see {out / 'README.md'}")


@click.command(
    "import", epilog="\b\nExample:\n  eulerlora import lora_0 lora_1 --format peft --out checkpoint"
)
@click.argument("sources", nargs=-1, required=True, type=PATH)
@click.option("--format", "format_", type=click.Choice(["peft", "lora-ensemble"]), required=True)
@click.option("--out", required=True, type=PATH, help="A new folder: the checkpoint.")
@click.option(
    "--backbone",
    metavar="SOURCE",
    help="Folder or repository of the backbone; that of the adapters by default. For "
    "lora-ensemble, a name of torchvision's weights; ViT_B_32_Weights.IMAGENET1K_V1 by default.",
)
@click.option(
    "--classes",
    help="Names, separated by commas; those of the backbone by default, or of the data set that "
    "the name of a lora-ensemble file has.",
)
@click.option("--name", default="imported", show_default=True, help="Name of the checkpoint.")
@click.option(
    "--preprocessing",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="JSON of the images' preparation in training, such as preprocessor_config.json; that in "
    "the adapters' folders or the backbone's by default, for lora-ensemble a resize alone.",
)
def import_command(
    sources: tuple[Path, ...],
    format_: str,
    out: Path,
    backbone: str | None,
    classes: str | None,
    name: str,
    preprocessing: Path | None,
) -> None:
    """Write a checkpoint with the adapters of other libraries' SOURCES as an ensemble.

    peft: folders with adapters of LoRA or MonteCLoRA, which answer in mode det, or of EulerLoRA
    (eulerlora.peft). Ranks of LoRA may differ, and PEFT's scaling becomes part of the weights.

    lora-ensemble: one file of LoRA-Ensemble for a Vision Transformer, which has all members.
    """
    if format_ == "lora-ensemble" and len(sources) > 1:
        raise click.UsageError(f"expected one file of lora-ensemble, got {len(sources)}")
    configure_openmp()
    # These import torch.
    from eulerlora.exchange.lora_ensemble import BACKBONE, import_lora_ensemble  # noqa: PLC0415
    from eulerlora.exchange.preprocessing import read_preprocessing  # noqa: PLC0415
    from eulerlora.methods.registry import method_type  # noqa: PLC0415
    from eulerlora_contract.output_files import check_free  # noqa: PLC0415

    check_free(out)
    prepared = None if preprocessing is None else read_preprocessing(preprocessing)
    names = [part.strip() for part in classes.split(",")] if classes else []
    if format_ == "peft":
        from eulerlora.plugins.peft_import import import_peft  # noqa: PLC0415

        config = import_peft(sources, out, backbone, names, name, prepared)
    else:
        (file,) = sources
        config = import_lora_ensemble(file, out, backbone or BACKBONE, names, name, prepared)
    members = method_type(config.method).members_text(config.adapters.settings)
    click.echo(f"{members}, {len(config.classes)} classes: {out}")
    click.echo(
        "next, with a folder of held-out pictures for each class in DIR: "
        f"eulerlora calibrate {out} --data DIR --out NEW"
    )
