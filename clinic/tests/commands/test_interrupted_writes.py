"""A kill or a full disk at any write of a command of the clinic leaves a whole state."""

import shutil
from pathlib import Path

import pytest

from eulerlora_clinic.policy.policy import default_policy_text
from tests.interrupted_writes import (
    Command,
    audit_hook,
    check_full_disk_from_any_write,
    check_kill_at_any_write,
)
from tests.training.commands.test_interrupted_writes import sources, work
from tests.training.conftest import undrawn_charts

__all__ = ["audit_hook", "sources", "undrawn_charts", "work"]


@pytest.fixture
def site(work: Path) -> Path:
    """A working folder with a policy for the classes of the pictures."""
    text = default_policy_text().replace('["mel", "bcc", "akiec"]', '["blue"]')
    (work / "policy.toml").write_text(text.replace('["mel"]', '["blue"]'))
    return work


COMMANDS = {
    "policy fit": Command(
        ("policy", "fit", "checkpoint", "--data", "data", "--policy", "policy.toml", "--device",
         "cpu"),
        "policy.toml",
    ),
    "site fit": Command(
        ("site", "fit", "checkpoint", "--data", "data/train", "--target", "blue", "--sensitivity",
         "0.75", "--out", "new", "--device", "cpu"),
        "new",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_at_any_write_leaves_the_old_state_or_the_new_one(
    name: str, site: Path, tmp_path: Path
) -> None:
    check_kill_at_any_write(name, COMMANDS[name], site, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_is_full_from_any_write_on_leaves_the_old_state_or_the_new_one(
    name: str, site: Path, tmp_path: Path
) -> None:
    before = Path(shutil.copytree(site, tmp_path / "before", symlinks=True))
    check_full_disk_from_any_write(name, COMMANDS[name], site, before, tmp_path, is_slow=True)
