"""The command `eulerlora train`, and what every command that trains shares."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eulerlora.commands import check_outside, configure_openmp, max_pixels_option
from eulerlora_contract.errors import CheckpointError, NonFiniteError, StorageError
from eulerlora_contract.program import PATH, terminated
from training.commands.options import (
    Command,
    device_option,
    skip_bad_option,
    table_options,
)

if TYPE_CHECKING:
    from training.data.dataset import LabelTable
    from training.optimisation.run import Tracker, Tracking
    from training.recipe.schema import Recipe


recipe_argument = click.argument("recipe", metavar="RECIPE")


def run_options(command: Command) -> Command:
    """Adds the options of every training."""
    options = (
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Replace a key of the recipe, such as training.epochs=2.",
        ),
        click.option(
            "--resume", is_flag=True, help="Continue an interrupted run; the weights are the same."
        ),
        click.option(
            "--restart", is_flag=True, help="Discard the stored state of an interrupted run."
        ),
        click.option(
            "--seed", type=click.IntRange(0, 2**32 - 1), help="Seed; replaces the recipe's."
        ),
        skip_bad_option,
        max_pixels_option,
        click.option(
            "--track",
            "trackers",
            type=click.Choice(["tensorboard", "mlflow", "wandb", "trackio"]),
            multiple=True,
            help="Record training curves with this tracker; may be repeated.",
        ),
        click.option(
            "--track-dir",
            type=PATH,
            metavar="DIR",
            help="Folder of the curves; by default the output folder's name with .curves, beside "
            "it.",
        ),
        device_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    "train",
    epilog="\b\nExample:\n  eulerlora train imagefolder --data pictures --out checkpoint\n\n"
    "--show prints all keys of --set with their meaning, docs/how-to/train.md how to choose them.",
)
@recipe_argument
@click.option("--data", type=PATH, help="Data directory.")
@click.option("--out", type=PATH, help="New or empty output folder.")
@click.option("--check", is_flag=True, help="Check the data only; writes nothing.")
@click.option("--show", is_flag=True, help="Print the recipe: keys, their meaning, what sets them.")
@click.option(
    "--copies",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the copies that --check finds to this CSV file.",
)
@click.option("--variant", metavar="NAME", help="Variant of the recipe.")
@click.option(
    "--no-evaluation",
    "evaluation",
    flag_value=False,
    default=True,
    help="End with the checkpoint, before anything is measured on the test part; it has no "
    "thresholds if the data have no calibration part. --resume without this option evaluates it.",
)
@table_options
@run_options
def train_command(
    recipe: str,
    data: Path | None,
    out: Path | None,
    variant: str | None,
    seed: int | None,
    overrides: tuple[str, ...],
    resume: bool,
    restart: bool,
    skip_bad: bool,
    table: LabelTable,
    trackers: tuple[Tracker, ...],
    track_dir: Path | None,
    check: bool,
    copies: Path | None,
    show: bool,
    evaluation: bool,
    device: str,
) -> None:
    """Train adapters on a frozen backbone; write a calibrated checkpoint to --out.

    RECIPE is a file, or the name of a packaged recipe such as imagefolder, which trains on a folder
    for each class or on the pictures of labels.csv (path, label, and optionally group and split). A
    folder in its place is answered with the command that trains on it.
    """
    configure_openmp()
    if data is None and _names_pictures(Path(recipe)):
        from training.data.dataset import UnreadDataError  # noqa: PLC0415 - torch
        from training.data.label_refusals import proposal  # noqa: PLC0415

        suggestion = proposal(Path(recipe), table)
        raise UnreadDataError(f"expected a recipe, got pictures in {recipe}", suggestion)
    from training.recipe.file import find_recipe, leaves, read_recipe  # noqa: PLC0415 - pydantic
    from training.recipe.schema import AdapterRecipe  # noqa: PLC0415

    path, overrides = find_recipe(recipe), with_seed(overrides, seed)
    given = table.model_dump(exclude_defaults=True, exclude={"renamed"})
    overrides += tuple(f"data.{'.'.join(key)}={json.dumps(value)}" for key, value in leaves(given))
    if table.renamed:  # one table, because a label may contain a dot
        pairs = (f"{_toml_string(one)} = {_toml_string(to)}" for one, to in table.renamed.items())
        overrides += (f"data.renamed={{{', '.join(pairs)}}}",)
    check_resumption(resume, restart)
    if copies is not None and not check:
        raise click.UsageError("--copies requires --check")
    if show:
        from training.recipe.file import recipe_with_sources  # noqa: PLC0415 - tomlkit

        for line in recipe_with_sources(path, AdapterRecipe, overrides, variant):
            click.echo(line)
        return
    if data is None or (out is None and not check):
        raise click.UsageError(f"Missing option '--{'data' if data is None else 'out'}'.")
    if copies is not None:
        check_outside(copies, data)
    # These import torch.
    from eulerlora.model import choose_device  # noqa: PLC0415
    from training.adaptation.network import members  # noqa: PLC0415
    from training.adaptation.train import check_data, state_file, train  # noqa: PLC0415

    settings = read_recipe(path, AdapterRecipe, overrides, variant)
    if out is None or check:
        if not check_data(settings, path.parent, data, copies, skip_bad):
            raise click.ClickException("a training would refuse these data")
        return
    curves = tracking(trackers, track_dir, out, settings)
    folders = [member.folder for member in members(settings, out)]
    states = [state_file(folder) for folder in folders]
    with resume_hint(states, checkpoint=folders[-1]):
        train(
            settings,
            path.parent,
            data,
            out,
            choose_device(device),
            resume=resume,
            skip_bad=skip_bad,
            tracking=curves,
            restart=restart,
            evaluation=evaluation,
        )


def _names_pictures(recipe: Path) -> bool:
    """Whether a folder or archive is in the place of a recipe."""
    return recipe.is_dir() or not {".zip", ".tar", ".tgz"}.isdisjoint(recipe.suffixes)


def _toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def check_resumption(resume: bool, restart: bool) -> None:
    """Checks the options of a command.

    Raises:
        UsageError: For both of --resume and --restart.
    """
    if resume and restart:
        raise click.UsageError("expected one of --resume and --restart, got both")


def with_seed(overrides: tuple[str, ...], seed: int | None) -> tuple[str, ...]:
    """The overrides of `--set` with that of `--seed`, if given."""
    return overrides if seed is None else (*overrides, f"seed={seed}")


def tracking(
    trackers: Sequence[Tracker], folder: Path | None, out: Path, recipe: Recipe
) -> Tracking | None:
    """What records the curves of a run in `out`; None without trackers.

    Raises:
        SettingsError: For a tracker that is not installed.
    """
    # These import torch.
    from training.optimisation.run import Tracking  # noqa: PLC0415
    from training.recipe.file import leaves  # noqa: PLC0415

    if not trackers:
        return None
    settings = recipe.without_source.model_dump(mode="json")
    flat = {".".join(key): str(value) for key, value in leaves(settings) if len(key) > 1}
    out = out if out.name else out.absolute()  # the current folder
    folder = folder or out.parent / f"{out.name}.curves"
    result = Tracking(tuple(dict.fromkeys(trackers)), folder, out.name, flat)
    result.check()
    return result


class _InterruptedRun(click.ClickException):
    exit_code = 128 + signal.SIGINT


class _TerminatedRun(click.ClickException):
    exit_code = 128 + signal.SIGTERM


@contextmanager
def resume_hint(states: Sequence[Path], checkpoint: Path | None = None) -> Iterator[None]:
    """Adds to the error of a block that ends early what it has stored.

    Raises:
        ClickException: With exit status 130 or 143, if Ctrl-C or SIGTERM ends the run.
        NonFiniteError: For non-finite numbers.
        StorageError: For a full disk.
    """

    def hint() -> str:
        if checkpoint is None:
            return _state_hint(states)
        if checkpoint.exists() and any(checkpoint.iterdir()):
            return f"the checkpoint in {checkpoint} is complete, but not evaluated"
        return f"no checkpoint was written; {_state_hint(states)}"

    def interrupted() -> str:
        return f"interrupted; {hint()}; use --resume to continue"

    try:
        yield
    except KeyboardInterrupt:
        raise _InterruptedRun(interrupted()) from None
    except SystemExit:
        raise _TerminatedRun(interrupted()) from None
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}; {hint()}") from error
    except StorageError as error:
        advice = f"{hint()}; free some space and use --resume"
        raise StorageError(error.path, error.reason, advice) from error
    except Exception:
        if terminated():
            raise _TerminatedRun(interrupted()) from None
        raise


def _state_hint(states: Sequence[Path]) -> str:
    """The step and the path of the last readable state."""
    from training.optimisation.run import stored_steps  # noqa: PLC0415 - imports torch

    for state in reversed(states):
        try:
            return f"the state after step {stored_steps(state)} is stored in {state}"
        except CheckpointError:
            continue
    return "no state was stored, because no step was finished"
