"""Files and folders that appear complete or not at all; one error for a full or failing disk.

All that the project writes passes through `atomic_write` or `new_folder`. Both prepare their files
in a workspace, a folder `.NAME.XXXXXXXX.partial` beside the target, and put them in place by one
rename. A killed process leaves its workspace, which the next one that writes the same target
removes.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from eulerlora_contract.errors import CheckpointError, OutputPathError, StorageError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def atomic_write(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` in one step when the block succeeds.

    Until then an older file at `path` stays, and no other user can read the new one. Of several
    processes that write the same file, the last one wins.

    `mode`: None for that of the older file; a new one then gets 644, less the umask.

    Raises:
        OutputPathError: For a folder at `path`.
        StorageError: For a full or failing disk.
    """
    _check_no_folder(path)
    with storage_errors(path), _workspace(path) as partial:
        partial.touch(0o644)
        usual = _mode(partial)
        yield partial
        _sync(partial)
        partial.chmod(_mode(path, usual) if mode is None else mode)
        partial.replace(path)
        sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 text file as `atomic_write` does."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def open_output(path: Path, private: bool = False) -> Iterator[TextIO]:
    """Opens a UTF-8 text file for writing without newline translation, as `atomic_write` does.

    A device, a pipe or an open file such as /dev/stdout is written to directly, and the target of a
    link is replaced, not the link. Bytes of file names that are not UTF-8 are written as escapes.
    `private` is for a file that may name patients.

    Raises:
        OutputPathError: If the file cannot be written there.
        StorageError: If the disk is full or fails.
    """
    check_writable(path)
    if _is_replaceable(path):
        real = Path(os.path.realpath(path))  # unlike Path.resolve, accepts broken links
        with (
            atomic_write(real, 0o600 if private else None) as partial,
            _open_text(partial) as file,
        ):
            yield file
        return
    descriptor = _open_descriptor(path)
    # A duplicate continues where the output of the process ends; opening would start anew.
    target = path if descriptor is None else os.dup(descriptor)
    with storage_errors(path), _open_text(target) as file:
        yield file


def check_writable(path: Path) -> None:
    """Checks the path of an output file, which `open_output` does again: before long work.

    Raises:
        OutputPathError: If the file cannot be written there.
    """
    _check_no_folder(path)
    if not _is_replaceable(path):
        if not os.access(path, os.W_OK):
            raise OutputPathError(f"{path}: expected a writable file")
        return
    folder = Path(os.path.realpath(path)).parent
    if not os.access(folder, os.W_OK):
        got = "one without permission" if folder.is_dir() else "none"
        raise OutputPathError(f"{path}: expected a writable folder {folder}, got {got}")


def _is_replaceable(path: Path) -> bool:
    """True for a regular file and for a path that does not exist, also behind a link."""
    return _open_descriptor(path) is None and (path.is_file() or not path.exists())


def _check_no_folder(path: Path) -> None:
    if path.is_dir():
        raise OutputPathError(f"{path}: expected the path of a file, got a folder")


def _open_descriptor(path: Path) -> int | None:
    """The open file descriptor that a path such as /dev/stdout or /dev/fd/3 names."""
    named = path.readlink() if path.parent == Path("/dev") and path.is_symlink() else path
    if named.name.isdecimal() and named.parent.resolve() == Path("/proc/self/fd").resolve():
        return int(named.name)
    return None


def check_free(folder: Path) -> None:
    """Checks that `folder`, also behind a link, is empty or does not exist.

    Removes what killed processes left beside it.

    Raises:
        CheckpointError: If it is not empty.
    """
    folder = Path(os.path.realpath(folder))
    if folder.parent.is_dir():
        remove_leftovers(folder)
    if folder.exists() and (
        not folder.is_dir() or len(_leftovers(folder, r"\..+\.")) < sum(1 for _ in folder.iterdir())
    ):
        raise CheckpointError(folder, "expected an empty or new folder, got existing files")


@contextmanager
def new_folder(folder: Path, last: str = "") -> Iterator[Path]:
    """Yields a temporary folder that becomes `folder` when the block succeeds.

    A volume, such as that of a container, cannot be replaced, and the current folder would be
    another one for its user: the complete files are moved into them one by one. The target of a
    link is replaced, not the link.

    `last`: the name of a file without which the folder is not read; of files that are moved one by
    one, it is the last.

    Raises:
        CheckpointError: If `folder` is not empty, before the block or after it.
        StorageError: For a full or failing disk.
    """
    check_free(folder)
    folder = Path(os.path.realpath(folder))
    is_filled = folder.is_mount() or (folder.exists() and folder.samefile(Path()))
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _workspace(folder / "new" if is_filled else folder) as partial:
            partial.mkdir()
            usual = _mode(partial)
            yield partial
            _sync_tree(partial)
            check_free(folder)
            if is_filled:
                for path in sorted(partial.iterdir(), key=lambda path: (path.name == last, path)):
                    if path.name == last:
                        sync_folder(folder)
                    path.rename(folder / path.name)
                sync_folder(folder)
            else:
                partial.chmod(_mode(folder, usual))
                partial.replace(folder)
                sync_folder(folder.parent)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Converts an OSError that the disk causes.

    Other errors, such as a missing permission, pass unchanged. Of nested blocks the outermost one
    determines the path in the message.

    Raises:
        StorageError: On `path`, for a full disk, an exceeded quota, a file over the size limit and
            a failed write.
    """
    try:
        yield
    except StorageError as error:
        raise StorageError(path, error.reason) from error
    except OSError as error:
        if error.errno not in (*_DISK_FULL, errno.EIO):
            raise
        cause = "disk full" if error.errno in _DISK_FULL else "the disk failed"
        raise StorageError(path, f"{cause} ({os.strerror(error.errno).lower()})") from error


def _open_text(path: Path | int) -> TextIO:
    return open(  # noqa: PTH123 - a descriptor has no Path
        path, "w", encoding="utf-8", errors="backslashreplace", newline=""
    )


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    """Yields a path with the name of `path` in a new folder beside it, removed when the block ends.

    The folder is private, and locked as long as the process lives; those of killed processes are
    removed. Where folders cannot be locked, as on NFS, they stay. An OSError names `path`.
    """
    try:
        remove_leftovers(path)
        folder, descriptor = _locked_folder(path)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(path: Path) -> tuple[Path, int]:
    while True:
        folder = path.with_name(f"{_prefix(path)}{secrets.token_hex(4)}.partial")
        folder.mkdir(mode=0o700)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process took it for a leftover before it was locked
            continue
        if lock(descriptor) is not False and folder.exists():
            return folder, descriptor
        os.close(descriptor)


def remove_leftovers(path: Path) -> None:
    """Removes what killed processes left beside a file or folder that they wrote."""
    try:
        leftovers = _leftovers(path.parent, re.escape(_prefix(path)))
    except PermissionError:  # a folder that can be written to, but not listed
        return
    for folder in leftovers:
        with suppress(OSError):  # of another user, or gone
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if lock(descriptor):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _prefix(path: Path) -> str:
    return f".{path.name.removeprefix('.')}."


def _leftovers(folder: Path, prefix: str) -> list[Path]:
    """Also the workspaces of living processes."""
    name = re.compile(rf"{prefix}[0-9a-f]{{8}}\.partial")
    return [path for path in folder.iterdir() if name.fullmatch(path.name)]


def lock(descriptor: int, waits: bool = False) -> bool | None:
    """Locks an open file or folder until it is closed.

    `waits`: for another process that has locked it.

    Returns:
        False if another process has locked it, and None on a file system without locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _mode(path: Path, missing: int = 0) -> int:
    """The permissions of a file or folder; `missing` for one that does not exist."""
    try:
        return stat.S_IMODE(path.stat().st_mode) & 0o777
    except FileNotFoundError:
        return missing


def _sync_tree(folder: Path) -> None:
    """Waits until a folder is on the disk with its files."""
    for path in (folder, *folder.rglob("*")):
        (sync_folder if path.is_dir() else _sync)(path)


def _sync(path: Path) -> None:
    """Waits until a file or folder is on the disk: network file systems report errors only then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk, where its file system can."""
    with suppress(OSError):
        _sync(folder)
