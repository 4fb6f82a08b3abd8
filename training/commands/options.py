"""Options of several training commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from eulerlora.commands import PRECISION_CHOICES
from eulerlora_contract.sampling import DEFAULT_SAMPLES, MAX_SAMPLES

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)

data_option = click.option("--data", type=PATH, required=True, help="Data directory.")
out_option = click.option("--out", type=PATH, required=True, help="New or empty output folder.")
skip_bad_option = click.option(
    "--skip-bad", is_flag=True, help="Skip unusable images and list them."
)
ignore_columns_option = click.option(
    "--ignore-columns", is_flag=True, help="Ignore unknown columns of labels.csv."
)
device_option = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N."
)
samples_option = click.option(
    "--samples",
    type=click.IntRange(1, MAX_SAMPLES),
    help=f"Samples per adapter in mode stoch; {DEFAULT_SAMPLES} by default.",
)


def image_options(command: Command) -> Command:
    return skip_bad_option(ignore_columns_option(device_option(command)))


def precision_option(default: str, purpose: str) -> Callable[[Command], Command]:
    """Returns the option `--precision`. purpose: start of its description."""
    return click.option(
        "--precision",
        type=click.Choice(PRECISION_CHOICES),
        default=default,
        show_default=True,
        help=f"{purpose} in this precision; auto: as `eulerlora serve` on this machine.",
    )
