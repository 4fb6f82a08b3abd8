"""The command `eulerlora bayesianise`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eulerlora.nn.openmp import set_openmp_wait_policy
from training.commands.options import (
    PATH,
    data_option,
    device_option,
    out_option,
    skip_bad_option,
)

if TYPE_CHECKING:
    from eulerlora.methods.fitting import FitSettings


@click.command("bayesianise")
@click.argument("checkpoint", type=PATH)
@click.option(
    "--method", metavar="NAME", required=True, help="tfb, laplace or swag, or that of an extension."
)
@data_option
@out_option
@click.option(
    "--images",
    type=click.IntRange(1),
    metavar="N",
    help="tfb, laplace: use N evenly spaced training images; 256 by default.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    help="tfb: accepted share of images whose label the noise changes; 0.01 by default.",
)
@click.option(
    "--layers",
    type=click.Choice(["last", "adapters", "all"]),
    help="laplace: the heads, the adapters, or all (default).",
)
@click.option(
    "--structure",
    type=click.Choice(["diagonal", "kron"]),
    help="laplace: the diagonal of the curvature (default) or Kronecker factors.",
)
@click.option(
    "--prior-precision",
    type=click.FloatRange(0, min_open=True),
    help="laplace: by default, the best of 1, 10, ..., 1e8 on held-out images.",
)
@click.option("--steps", type=click.IntRange(1), help="swag: steps of SGD; 200 by default.")
@click.option(
    "--snapshots", type=click.IntRange(2), help="swag: snapshots of the weights; 20 by default."
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    help="swag: constant rate of SGD; 1e-3 by default.",
)
@skip_bad_option
@device_option
def bayesianise_command(
    checkpoint: Path,
    method: str,
    data: Path,
    out: Path,
    skip_bad: bool,
    device: str,
    **options: Any,
) -> None:
    """Fit a weight distribution to the adapters of a finished checkpoint.

    Writes a new, calibrated checkpoint to --out (docs/methods.md): tfb adds noise that hardly
    changes labels, laplace uses the curvature of the loss, swag the weights along some more steps.
    """
    set_openmp_wait_policy()
    settings = _settings(method, options)
    # These import torch.
    from eulerlora.checkpoint.files import check_free, read_config  # noqa: PLC0415
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.adaptation.posterior import bayesianise  # noqa: PLC0415
    from training.data.datasets import checkpoint_dataset, checkpoint_outliers  # noqa: PLC0415
    from training.data.images import report_skipped  # noqa: PLC0415

    check_free(out)
    source = read_config(checkpoint)
    images = checkpoint_dataset(source, data, skip_bad)
    report_skipped(images)
    outliers = partial(checkpoint_outliers, source, data, skip_bad)
    config = bayesianise(checkpoint, images, settings, out, choose_device(device), outliers)
    click.echo(f"{config.method.model_dump_json()}\ncheckpoint in {out}")


def _settings(method: str, options: dict[str, Any]) -> FitSettings:
    """Returns the settings of the method. Raises UsageError for an option of another method."""
    from eulerlora.methods.registry import fitted_methods  # noqa: PLC0415 - torch
    from eulerlora_client.settings import validated  # noqa: PLC0415 - pydantic

    known = fitted_methods()
    if method not in known:
        raise click.BadParameter(
            f"{method!r} is not one of {', '.join(known)}.", param_hint="'--method'"
        )
    kind = known[method].fit_settings
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in kind.model_fields:
            raise click.UsageError(
                f"--{name.replace('_', '-')} does not apply to --method {method}"
            )
    return validated(kind, given)
