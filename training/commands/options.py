"""Options of several training commands, and the resume hint of a run that ends early."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from eulerlora.commands import PRECISION_CHOICES
from eulerlora_client.commands.triage import SHARE
from eulerlora_client.contract.sampling import DEFAULT_SAMPLES, MAX_SAMPLES
from eulerlora_client.errors import CheckpointError, NonFiniteError, StorageError

if TYPE_CHECKING:
    from training.fit.run import Tracker, Tracking
    from training.recipe.schema import Recipe

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)

recipe_argument = click.argument("recipe", metavar="RECIPE")
data_option = click.option("--data", type=PATH, required=True, help="Data directory.")
out_option = click.option("--out", type=PATH, required=True, help="New or empty output folder.")
variant_option = click.option("--variant", metavar="NAME", help="Variant of the recipe.")
seed_option = click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), help="Seed; replaces the recipe's."
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a key of the recipe, such as training.epochs=2.",
)
resume_option = click.option(
    "--resume", is_flag=True, help="Continue an interrupted run; the weights are the same."
)
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
    """Adds the options of a command that reads images and predicts them."""
    return skip_bad_option(ignore_columns_option(device_option(command)))


def track_options(command: Command) -> Command:
    """Adds the options of the arguments of `tracking`."""
    tracker = click.option(
        "--track",
        "trackers",
        type=click.Choice(["tensorboard", "mlflow", "wandb", "trackio"]),
        multiple=True,
        help="Record training curves with this tracker; may be repeated.",
    )
    folder = click.option(
        "--track-dir",
        type=PATH,
        metavar="DIR",
        help="Folder of the curves; by default the output folder's name with .curves, beside it.",
    )
    return tracker(folder(command))


def precision_option(default: str, purpose: str) -> Callable[[Command], Command]:
    """Returns the option `--precision`. purpose: start of its description."""
    return click.option(
        "--precision",
        type=click.Choice(PRECISION_CHOICES),
        default=default,
        show_default=True,
        help=f"{purpose} in this precision; auto: as `eulerlora serve` on this machine.",
    )


class Coverages(click.ParamType[tuple[float, ...]]):
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


def tracking(
    trackers: Sequence[Tracker], folder: Path | None, out: Path, recipe: Recipe
) -> Tracking | None:
    """Returns what records the curves of a run in `out`; None without trackers.

    Raises SettingsError for a tracker that is not installed.
    """
    # These import torch.
    from training.fit.run import Tracking  # noqa: PLC0415
    from training.recipe.file import leaves  # noqa: PLC0415

    if not trackers:
        return None
    settings = recipe.without_source.model_dump(mode="json")
    flat = {".".join(key): str(value) for key, value in leaves(settings) if len(key) > 1}
    folder = folder or out.with_name(f"{out.name}.curves")
    result = Tracking(tuple(dict.fromkeys(trackers)), folder, out.name, flat)
    result.check()
    return result


class InterruptedRun(click.ClickException):
    """The end of a run by Ctrl-C."""

    exit_code = 128 + signal.SIGINT


class TerminatedRun(click.ClickException):
    """The end of a run by SIGTERM, for which the program raises SystemExit."""

    exit_code = 128 + signal.SIGTERM


@contextmanager
def resume_hint(hint: Callable[[], str]) -> Iterator[None]:
    """Adds `hint()` to the error of a block that ends early.

    Applies to a run that Ctrl-C or SIGTERM ends, with the exit status 130 or 143, and to non-finite
    numbers and a full disk.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as interrupt:
        kind = InterruptedRun if isinstance(interrupt, KeyboardInterrupt) else TerminatedRun
        raise kind(f"interrupted; {hint()}; use --resume to continue") from None
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}; {hint()}") from error
    except StorageError as error:
        advice = f"{hint()}; free some space and use --resume"
        raise StorageError(error.path, error.reason, advice) from error


def checkpoint_hint(last: Path, states: list[Path]) -> str:
    """Returns what a training run has stored: its last checkpoint, or its state in `states`."""
    if last.exists() and any(last.iterdir()):
        return f"the checkpoint in {last} is complete, but not evaluated"
    return f"no checkpoint was written; {state_hint(states)}"


def state_hint(states: list[Path]) -> str:
    """Returns the step and the path of the last readable state."""
    from training.fit.run import stored_steps  # noqa: PLC0415 - imports torch

    for state in reversed(states):
        try:
            return f"the state after step {stored_steps(state)} is stored in {state}"
        except CheckpointError:
            continue
    return "no state was stored, because no step was finished"
