"""A kill or a full disk at any write of a command leaves the old state or the new one.

The writes are those of Python code below the folder of a test: files that are opened for writing or
truncated, and names that are created, renamed or removed. They are found by an audit hook.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from eulerlora.checkpoint.files import (
    CARD_FILES,
    load_checkpoint,
    predict_known_answer,
    read_known_answer,
)
from eulerlora.checkpoint.weights import BACKBONE_FILE, load_backbone, tensors_sha256
from eulerlora_clinic.policy.policy import default_policy_text
from eulerlora_contract.errors import CheckpointError
from eulerlora_contract.output_files import atomic_write, check_free
from tests.checkpoint_files import ADAPTERS_FILE
from tests.program import run, succeed
from tests.training.conftest import set_options, write_recipe
from training.adaptation.train import state_file
from training.optimisation.run import check_stored_state

SHORT = (
    "data.path=train", "evaluation.ood=[]", "evaluation.calibrated=[4]", "training.epochs=1",
)  # fmt: skip
WRITES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate")
State = Mapping[str, bytes] | bytes | None
"""The files of a folder by name, the content of a file, or None for neither."""


Notify = Callable[[str], None]
"""Gets the name of an audit event."""


class _Observer:
    """Calls `notify` before each write below `folder`; one hook serves all tests of the process."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.notify: Notify = lambda _: None

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            flags = arguments[2]
            if not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                return
        elif event not in WRITES:
            return
        path, folder = arguments[0], self.folder
        if isinstance(path, str | os.PathLike) and str(Path(path).absolute()).startswith(folder):
            self.folder = None
            try:
                self.notify(event)
            finally:
                self.folder = folder


OBSERVER = _Observer()


@pytest.fixture(scope="module", autouse=True)
def _hook() -> None:
    sys.addaudithook(OBSERVER.hook)  # cannot be removed


@contextmanager
def observed(folder: Path, notify: Notify) -> Iterator[None]:
    OBSERVER.notify, OBSERVER.folder = notify, str(folder)
    try:
        yield
    finally:
        OBSERVER.folder = None


@dataclass(frozen=True)
class Command:
    """arguments: of the program, in the working folder. target: what it writes there."""

    arguments: Sequence[str | Path]
    target: str


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
    text = default_policy_text().replace('["mel", "bcc", "akiec"]', '["blue"]')
    text = text.replace('["mel"]', '["blue"]')
    (folder / "policy.toml").write_text(text)
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
    "export": Command(("export", "checkpoint", "--format", "torchvision", "--out", "new"), "new"),
    "import": Command(
        ("import", "peft/adapter_0", "peft/adapter_1", "--format", "peft", "--out", "new"), "new"
    ),
    "backbone import": Command(("backbone", "import", "peft/backbone", "--out", "new"), "new"),
    "keys new": Command(("keys", "new", "lab", "--file", "keys.jsonl"), "keys.jsonl"),
    "keys retire": Command(("keys", "retire", "clinic", "--file", "keys.jsonl"), "keys.jsonl"),
}  # fmt: skip


def state(path: Path) -> State:
    """What readers see at a path: of charts, the one that the card shows.

    A checkpoint is loaded and must give its known answer.
    """
    if path.is_file():
        return path.read_bytes()
    if not path.exists():
        return None
    files: dict[str, Path] = {}
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if not (file.is_dir() or any(part.endswith(".partial") for part in parts)):
            files["/".join(parts)] = file
    if ADAPTERS_FILE in files:
        checkpoint = load_checkpoint(path)
        known = read_known_answer(path, checkpoint.config)
        temperatures = checkpoint.config.temperatures
        outputs = predict_known_answer(checkpoint.network, known.pixels, known.draws, temperatures)
        assert known.fault(outputs, "float32") is None
        card = files["README.md"].read_text()
        for beside in (file for pattern in CARD_FILES for file in path.glob(pattern)):
            if beside.name not in card:
                del files[beside.name]
    contents = {name: file.read_bytes() for name, file in files.items()}
    if BACKBONE_FILE in files:  # the order of its metadata is random
        backbone = load_backbone(files[BACKBONE_FILE]).backbone
        contents[BACKBONE_FILE] = tensors_sha256(backbone.state_dict()).encode()
    return contents


def leftovers(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob(".*"))
    return [name for name in names if name.endswith(".partial")]


def write_again(target: Path, killed: State) -> None:
    if isinstance(killed, bytes):
        with atomic_write(target) as partial:
            partial.write_bytes(killed)
    elif killed is None:
        check_free(target)
    else:
        with pytest.raises(CheckpointError):
            check_free(target)
        if "README.md" in killed:
            (target / "README.md").write_bytes(killed["README.md"])


@dataclass
class FullDisk:
    """Fails each write after the first `left` ones; what is removed needs no space."""

    left: int

    def __call__(self, event: str) -> None:
        self.left -= 1
        if self.left < 0 and event not in ("os.remove", "os.rmdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def outcome_of(name: str, actual: State, old: State, new: State) -> str:
    """A new key is random, and a training has a third state: a checkpoint for `--resume`."""
    if actual in (old, new):
        return "old" if actual == old else "new"
    if name == "keys new":
        succeed("keys", "list", "--file", "keys.jsonl")
        return "new"
    assert name == "train"
    return "step"


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
    command, copies = COMMANDS[name], list[Path]()

    def copy(_: str) -> None:  # what a kill would leave
        copies.append(tmp_path / f"killed-{len(copies)}")
        shutil.copytree(work, copies[-1], symlinks=True)

    old = state(work / command.target)
    with observed(work, copy):
        succeed(*command.arguments)
    new = state(work / command.target)
    assert leftovers(work) == []
    seen: dict[str, int] = {}
    for folder in copies:
        target = folder / command.target
        killed = state(target)
        outcome = outcome_of(name, killed, old, new)
        if name == "train":
            check_stored_state(state_file(target), resume=True, restart=False)
        seen[outcome] = seen.get(outcome, 0) + 1
        write_again(target, killed)
        assert state(target) == killed
        assert leftovers(target.parent) == []
    print(f"{name}: kill at each of {len(copies)} writes: {seen}")
    assert seen["old"] > 0


def outcomes(command: Command, work: Path) -> tuple[State, State, int]:
    """Runs a command: its target before and after, and the number of its writes."""
    writes: list[str] = []
    old = state(work / command.target)
    with observed(work, writes.append):
        succeed(*command.arguments)
    return old, state(work / command.target), len(writes)


SLOW = ("train", "evaluate", "calibrate", "policy fit", "site fit")
TRIED = 12
"""Writes at which the disk is full, evenly spaced, of commands that take long."""


@pytest.mark.parametrize("name", marked(SLOW))
def test_a_disk_that_is_full_from_any_write_on_leaves_the_old_state_or_the_new_one(
    name: str, work: Path, tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[name]
    old, new, writes = outcomes(command, work)
    seen: dict[str, int] = {}
    for first in range(0, writes, -(-writes // TRIED) if name in SLOW else 1):
        folder = tmp_path / f"full-{first}"
        shutil.copytree(sources, folder, symlinks=True)
        monkeypatch.chdir(folder)
        with observed(folder, FullDisk(first)):
            done = run(*command.arguments)
        outcome = outcome_of(name, state(folder / command.target), old, new)
        assert done.status == 0 or "disk full" in done.err, done.err
        seen[outcome] = seen.get(outcome, 0) + 1
    print(f"{name}: disk full from {sum(seen.values())} of {writes} writes on: {seen}")


DRIVER = """
import os, signal, sys
from pathlib import Path
from tests.training.commands import test_interrupted_writes as tests
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
