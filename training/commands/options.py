"""Options of several training commands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from eulerlora.commands import PRECISION_CHOICES, max_pixels_option
from eulerlora_contract.errors import DataError
from eulerlora_contract.program import PATH, SHARE
from eulerlora_contract.sampling import DEFAULT_SAMPLES, MAX_SAMPLES, Auto

if TYPE_CHECKING:
    from training.data.dataset import Suggestion

_COLUMNS = ("path", "label", "group", "lesion", "split")
Command = TypeVar("Command", bound=Callable[..., Any])

data_option = click.option("--data", type=PATH, required=True, help="Data directory.")
out_option = click.option("--out", type=PATH, required=True, help="New or empty output folder.")
skip_bad_option = click.option(
    "--skip-bad", is_flag=True, help="Skip unusable images and list them."
)
device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."
)
mode_option = click.option(
    "--mode", type=click.Choice(["det", "stoch"]), default="stoch", show_default=True
)
samples_option = click.option(
    "--samples",
    type=click.IntRange(1, MAX_SAMPLES),
    help=f"Samples per adapter in mode stoch; {DEFAULT_SAMPLES} by default.",
)


class _CoveragesParameter(click.ParamType[tuple[float, ...]]):
    """Different coverages of prediction sets, separated by commas."""

    name = "0-1,..."

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        coverages = tuple(SHARE.convert(part, param, ctx) for part in value.split(","))
        if len(set(coverages)) < len(coverages):
            self.fail(f"expected different coverages, got {value}", param, ctx)
        return coverages


COVERAGES = _CoveragesParameter()


def check_samples(mode: str, samples: int | Auto | None) -> None:
    """Checks the options of a command.

    Raises:
        UsageError: For samples in mode det.
    """
    if mode == "det" and samples is not None:
        raise click.UsageError("expected --samples only with mode stoch, got --mode det")


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of labels; the command gets them as `table`, a `LabelTable`."""

    @wraps(command)
    def with_table(
        images: str,
        tables: tuple[str, ...],
        encoding: str | None,
        suffix: str,
        one_hot: str,
        ignore_columns: bool,
        attributes: tuple[str, ...],
        renamed: tuple[str, ...],
        ignored: tuple[str, ...],
        **options: Any,
    ) -> Any:
        from training.data.dataset import LabelTable, UnreadDataError  # noqa: PLC0415 - torch

        names = {column: options.pop(f"{column}_column") for column in _COLUMNS}
        columns = {column: name for column, name in names.items() if name is not None}
        table = LabelTable.model_validate(
            {
                "images": images,
                "tables": tables,
                "encoding": encoding,
                "suffix": suffix,
                "columns": columns,
                "one_hot": tuple(name.strip() for name in one_hot.split(",") if name.strip()),
                "ignore_columns": ignore_columns,
                "attributes": attributes,
                "renamed": _mapping(renamed),
                "ignored": ignored,
            }
        )
        try:
            return command(table=table, **options)
        except UnreadDataError as error:
            suggestion, command_line = error.suggestion, _suggested(error.suggestion, options)
            if command_line is None:
                raise
            if suggestion.condition:
                raise DataError(f"{error}; {suggestion.condition}, run: {command_line}") from error
            click.echo(command_line)
            message = f"{error}; the command on standard output reads it"
            purpose = f", {suggestion.purpose}" if suggestion.purpose else ""
            raise DataError(f"{message}{purpose}") from error

    for column in reversed(_COLUMNS):
        with_table = click.option(
            f"--{column}-column", metavar="NAME", help=f"Column of labels.csv with the {column}."
        )(with_table)
    for option in (
        click.option(
            "--one-hot",
            default="",
            metavar="NAMES",
            help="Columns of the table with a 1 for the class, such as MEL,NV,BCC.",
        ),
        click.option(
            "--suffix",
            default="",
            metavar="TEXT",
            help="Suffix of the pictures, such as .jpg, if the table has names without it and "
            "pictures with several.",
        ),
        click.option(
            "--encoding",
            metavar="NAME",
            help="Encoding of the table, such as cp1252. Default: that of its byte order mark, or "
            "UTF-8.",
        ),
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="FILE",
            help="Table of labels in the folder of --data instead of labels.csv, or one in each of "
            "its parts. Repeat it for tables with further columns of the same pictures.",
        ),
        click.option(
            "--images",
            default=".",
            metavar="PATH",
            help="Folder or archive of the pictures, from the folder of --data, if the table is in "
            "another one.",
        ),
        click.option(
            "--attribute",
            "attributes",
            multiple=True,
            metavar="NAME",
            help="Further column of labels.csv, such as sex or skin_type, by whose values results "
            "are also stated. Repeat it for several.",
        ),
        click.option(
            "--ignore-columns", is_flag=True, help="Ignore unknown columns of labels.csv."
        ),
        click.option(
            "--ignore",
            "ignored",
            multiple=True,
            metavar="LABEL",
            help="Leave out pictures of this label. Repeat it for several.",
        ),
        click.option(
            "--class",
            "renamed",
            multiple=True,
            metavar="LABEL=CLASS",
            help="Class of a label in the data. Repeat it for several.",
        ),
    ):
        with_table = option(with_table)
    return with_table


def _mapping(renamed: tuple[str, ...]) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for item in renamed:
        label, equals, name = item.rpartition("=")
        if not (label and equals and name):
            raise click.UsageError(f"--class: expected LABEL=CLASS, got {item}")
        if mapping.setdefault(label, name) != name:
            raise click.UsageError(f"--class: expected one class for {label}, got several")
    return mapping


def _suggested(suggestion: Suggestion, options: Mapping[str, Any]) -> str | None:
    """The present command with the suggested options; None if there are none for this command."""
    words, added = sys.argv[1:], suggestion.options
    if suggestion.recipe and "recipe" in options:
        at, added = words.index(options["recipe"]), ()
        words[at : at + 1] = suggestion.recipe
    elif "recipe" in options and options["data"] is None:
        words[words.index(options["recipe"])] = "imagefolder"
    elif not added and suggestion.folder is None:
        return None
    if suggestion.folder is not None:
        given, words = words, []
        for word in given:
            if words[-1:] == ["--data"]:
                words.append(str(suggestion.folder))
            else:
                is_data = word.startswith("--data=")
                words.append(f"--data={suggestion.folder}" if is_data else word)
        if options.get("data") is None:
            words += ["--data", str(suggestion.folder), "--check"]
    return shlex.join(["eulerlora", *words, *added])


def image_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return skip_bad_option(table_options(max_pixels_option(device_option(command))))


def precision_option(default: str, purpose: str) -> Callable[[Command], Command]:
    return click.option(
        "--precision",
        type=click.Choice(PRECISION_CHOICES),
        default=default,
        show_default=True,
        help=f"{purpose} in this precision; auto: as `eulerlora serve` on this machine.",
    )
