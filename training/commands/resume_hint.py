"""What a run that ended early has kept, told in the line that says why it ended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from eulerlora.errors import CheckpointError, NonFiniteError, StorageError
from training.fit.run_state import steps_of_state


@contextmanager
def telling_what_is_kept(kept: Callable[[], str]) -> Iterator[None]:
    """Adds `kept()` to what ends the block: Ctrl-C, a number that is not finite, a full disk."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.ClickException(f"interrupted; {kept()}; use --resume to go on") from None
    except NonFiniteError as error:
        raise NonFiniteError(f"{error}; {kept()}") from error
    except StorageError as error:
        advice = f"{kept()}; free some space and use --resume"
        raise StorageError(error.path, error.reason, advice) from error


def kept_checkpoint(out: Path, state: Path) -> str:
    """What there is of a training into `out`, whose state is kept in `state`."""
    if out.exists() and any(out.iterdir()):
        return f"the checkpoint in {out} is whole, its evaluation not done"
    return f"no checkpoint was written; {kept_state([state])}"


def kept_state(states: list[Path]) -> str:
    """Which step the last readable one of a run's states is of."""
    for state in reversed(states):
        try:
            return f"the state of step {steps_of_state(state)} is kept in {state}"
        except CheckpointError:
            continue
    return "no state was kept"
