"""The command `eulerlora bayesianise`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import set_openmp_wait_policy
from training.commands.options import PATH, data_option, image_options, out_option

if TYPE_CHECKING:
    from eulerlora.nn.method import FitSettings


@click.command(
    "bayesianise",
    epilog="\b\nExample:\n  eulerlora bayesianise checkpoint --method swag --data data --out new",
)
@click.argument("checkpoint", type=PATH)
@click.option(
    "--method", metavar="NAME", required=True, help="tfb, laplace or swag, or that of an extension."
)
@data_option
@out_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the fit, such as images=256: keys posterior.* of docs/reference/recipes.md.",
)
@image_options
def bayesianise_command(
    checkpoint: Path,
    method: str,
    data: Path,
    out: Path,
    settings: tuple[str, ...],
    skip_bad: bool,
    ignore_columns: bool,
    device: str,
) -> None:
    """Fit a weight distribution to the adapters of a finished checkpoint.

    Writes a new, calibrated checkpoint to --out: tfb adds noise that hardly changes labels,
    laplace uses the curvature of the loss, swag the weights along some more steps.
    """
    set_openmp_wait_policy()
    fit = _fit_settings(method, settings)
    # These import torch.
    from eulerlora.checkpoint.files import read_config  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from eulerlora_contract.output_files import check_free  # noqa: PLC0415
    from training.adaptation.posterior import bayesianise  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset, checkpoint_outliers  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415

    check_free(out)
    source = read_config(checkpoint)
    images = checkpoint_dataset(source, data, skip_bad, ignore_columns)
    report_skipped(images)
    outliers = partial(checkpoint_outliers, source, data, skip_bad)
    config = bayesianise(checkpoint, images, fit, out, choose_device(device), outliers)
    click.echo(f"{config.method.model_dump_json()}\ncheckpoint in {out}")


def _fit_settings(method: str, settings: Sequence[str]) -> FitSettings:
    from eulerlora.methods.registry import settings_of_fits  # noqa: PLC0415
    from eulerlora_contract.errors import SettingsError  # noqa: PLC0415 - torch
    from eulerlora_contract.settings import validated  # noqa: PLC0415 - pydantic
    from training.recipe.file import with_overrides  # noqa: PLC0415

    known = settings_of_fits()
    if method not in known:
        raise click.BadParameter(
            f"{method!r} is not one of {', '.join(known)}.", param_hint="'--method'"
        )
    try:
        tables = with_overrides({"name": method}, settings)
        return validated(known[method], tables)
    except SettingsError as error:
        raise click.BadParameter(str(error), param_hint="'--set'") from error
