"""Checks that a kill or a full disk at any write of a command leaves the old state or the new one.

The writes are those of Python code below the folder of a test: files that are opened for writing or
truncated, and names that are created, renamed or removed. They are found by an audit hook.
"""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from eulerlora.checkpoint.files import load_checkpoint, predict_known_answer, read_known_answer
from eulerlora.checkpoint.weights import load_backbone, tensors_sha256
from eulerlora_contract.errors import CheckpointError
from eulerlora_contract.output_files import atomic_write, check_free, new_folder, write_text
from tests.checkpoint_files import ADAPTERS_FILE
from tests.program import run, succeed
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
def audit_hook() -> None:
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
        for beside in (
            file
            for pattern in ("reliability-*.png", "results-*.csv")
            for file in path.glob(pattern)
        ):
            if beside.name not in card:
                del files[beside.name]
    contents = {name: file.read_bytes() for name, file in files.items()}
    name = "backbone.safetensors"
    if name in files:  # the order of its metadata is random
        backbone = load_backbone(files[name]).backbone
        contents[name] = tensors_sha256(backbone.state_dict()).encode()
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
            write_text(target / "README.md", killed["README.md"].decode())
        report, complete = target / "report", target.with_name("report")
        if report.exists():
            report.rename(complete)
        with new_folder(report):  # as the next training would
            pass
        report.rmdir()
        if complete.exists():
            complete.rename(report)


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


def check_kill_at_any_write(name: str, command: Command, work: Path, tmp_path: Path) -> None:
    """Checks every state that a kill can leave. `name`: of the command, in `outcome_of`."""
    copies = list[Path]()

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


TRIED = 12
"""Writes at which the disk is full, evenly spaced, of commands that take long."""


def check_full_disk_from_any_write(
    name: str, command: Command, work: Path, sources: Path, tmp_path: Path, is_slow: bool
) -> None:
    """Checks the state that a full disk leaves. `sources`: of which `work` is a copy."""
    old, new, writes = outcomes(command, work)
    seen: dict[str, int] = {}
    for first in range(0, writes, -(-writes // TRIED) if is_slow else 1):
        folder = tmp_path / f"full-{first}"
        shutil.copytree(sources, folder, symlinks=True)
        with chdir(folder), observed(folder, FullDisk(first)):
            done = run(*command.arguments)
        outcome = outcome_of(name, state(folder / command.target), old, new)
        assert done.status == 0 or "disk full" in done.err, done.err
        seen[outcome] = seen.get(outcome, 0) + 1
    print(f"{name}: disk full from {sum(seen.values())} of {writes} writes on: {seen}")
