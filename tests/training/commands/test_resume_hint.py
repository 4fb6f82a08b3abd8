"""The line that ends a run says what it kept."""

from pathlib import Path

import click
import pytest
import torch

from eulerlora.errors import NonFiniteError, StorageError
from training.commands.resume_hint import kept_checkpoint, kept_state, telling_what_is_kept
from training.fit.run_state import Progress, save_state
from training.recipe.schema import OptimisationSettings

SETTINGS = OptimisationSettings(epochs=1)


def state_of_step(path: Path, step: int) -> Path:
    module = torch.nn.Linear(1, 1)
    optimiser = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 1)).sum().backward()
    optimiser.step()
    save_state(path, module, optimiser, Progress(step=step), SETTINGS)
    return path


def test_the_last_readable_state_is_named_with_its_step(tmp_path: Path) -> None:
    first, second = state_of_step(tmp_path / "1", 40), state_of_step(tmp_path / "2", 7)
    assert kept_state([first, second]) == f"the state of step 7 is kept in {second}"
    second.write_bytes(b"damaged")
    assert kept_state([first, second, tmp_path / "3"]) == (
        f"the state of step 40 is kept in {first}"
    )
    assert kept_state([tmp_path / "3"]) == "no state was kept"


def test_a_checkpoint_that_is_already_written_is_named_instead(tmp_path: Path) -> None:
    out, state = tmp_path / "out", state_of_step(tmp_path / "state", 7)
    assert kept_checkpoint(out, state) == (
        f"no checkpoint was written; the state of step 7 is kept in {state}"
    )
    out.mkdir()
    assert "no checkpoint was written" in kept_checkpoint(out, state)
    (out / "config.json").write_text("{}")
    assert str(out) in kept_checkpoint(out, state)
    assert "is whole" in kept_checkpoint(out, state)


@pytest.mark.parametrize(
    ("raised", "expected", "message"),
    [
        (KeyboardInterrupt(), click.ClickException, "interrupted; KEPT; use --resume to go on"),
        (NonFiniteError("the loss at step 2 is nan"), NonFiniteError, "at step 2 is nan; KEPT"),
        (
            StorageError(Path("x"), "disk full"),
            StorageError,
            "disk full while writing x; KEPT; free some space and use --resume",
        ),
    ],
)
def test_what_ends_a_run_gets_the_words_added(
    raised: BaseException, expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected) as caught, telling_what_is_kept(lambda: "KEPT"):
        raise raised
    assert str(caught.value).endswith(message)


def test_other_errors_pass_as_they_are() -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError) as caught, telling_what_is_kept(lambda: "KEPT"):
        raise error
    assert caught.value is error
