"""A kill or a full disk at any write of a command leaves the old state or the new one."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.interrupted_writes import (
    Command,
    audit_hook,
    check_full_disk_from_any_write,
    check_kill_at_any_write,
    leftovers,
    outcomes,
    state,
)
from tests.program import succeed
from tests.training.conftest import set_options, write_recipe

__all__ = ["audit_hook"]
SHORT = (
    "data.path=train", "evaluation.ood=[]", "evaluation.calibrated=[4]", "training.epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def sources(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, and what commands of `COMMANDS` start from."""
    folder = tmp_path_factory.mktemp("sources")
    recipe = write_recipe(folder)
    (folder / "data").symlink_to(image_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train = ("train", recipe, "--data", "data", "--out", "checkpoint", "--device", "cpu")
        succeed(*train, *set_options(SHORT))
        succeed("export", "checkpoint", "--format", "peft", "--sampled", "--out", "peft")
        succeed("keys", "new", "clinic", "--file", "keys.jsonl")
    (folder / "checkpoint" / "README.md").write_text("# An earlier card\n")
    return folder


COMMANDS = {
    "train": Command(
        ("train", "tiny.toml", "--data", "data", "--out", "new", "--device", "cpu",
         *set_options(SHORT)),
        "new",
    ),
    "calibrate": Command(
        ("calibrate", "checkpoint", "--data", "data", "--views", "8", "--out", "new", "--device",
         "cpu"),
        "new",
    ),
    "evaluate": Command(
        ("evaluate", "checkpoint", "--data", "data", "--mode", "det", "--out", "new", "--device",
         "cpu"),
        "new",
    ),
    "card": Command(("card", "checkpoint", "--report", "checkpoint/report"), "checkpoint"),
    "export": Command(("export", "checkpoint", "--format", "torchvision", "--out", "new"), "new"),
    "import": Command(
        ("import", "peft/adapter_0", "peft/adapter_1", "--format", "peft", "--out", "new"), "new"
    ),
    "backbone import": Command(("backbone", "import", "peft/backbone", "--out", "new"), "new"),
    "keys new": Command(("keys", "new", "lab", "--file", "keys.jsonl"), "keys.jsonl"),
    "keys retire": Command(("keys", "retire", "clinic", "--file", "keys.jsonl"), "keys.jsonl"),
}  # fmt: skip


@pytest.fixture
def work(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(sources, tmp_path / "work", symlinks=True))
    monkeypatch.chdir(folder)
    return folder


def marked(slow: Sequence[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in COMMANDS]


@pytest.mark.parametrize("name", marked(["train", "evaluate"]))
def test_a_kill_at_any_write_leaves_the_old_state_or_the_new_one(
    name: str, work: Path, tmp_path: Path
) -> None:
    check_kill_at_any_write(name, COMMANDS[name], work, tmp_path)


SLOW = ("train", "evaluate", "calibrate")


@pytest.mark.parametrize("name", marked(SLOW))
def test_a_disk_that_is_full_from_any_write_on_leaves_the_old_state_or_the_new_one(
    name: str, work: Path, tmp_path: Path, sources: Path
) -> None:
    command = COMMANDS[name]
    check_full_disk_from_any_write(name, command, work, sources, tmp_path, name in SLOW)


DRIVER = """
import os, signal, sys
from pathlib import Path
from tests import interrupted_writes as tests
from eulerlora_contract.program import main

left = int(sys.argv.pop(1))
def notify(event):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(tests.OBSERVER.hook)
with tests.observed(Path.cwd(), notify):
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.95])
def test_a_process_that_is_killed_leaves_no_checkpoint_or_the_new_one(
    work: Path, sources: Path, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS["calibrate"]
    old, new, writes = outcomes(command, work)
    folder = Path(shutil.copytree(sources, tmp_path / "again", symlinks=True))
    root = Path(__file__).parents[3]
    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, str(round(writes * share)), *map(str, command.arguments)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert state(folder / command.target) in (old, new)
    monkeypatch.chdir(folder)
    if (folder / command.target).exists():  # killed between the rename and the end
        shutil.rmtree(command.target)
    succeed(*command.arguments)
    assert state(folder / command.target) == new
    assert leftovers(folder) == []
