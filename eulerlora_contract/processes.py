"""The start of Python processes, their freed memory, and the protection of those that hold secrets.

Every Python process of the program starts here: isolated from the working folder, whose files are
not the program's, and from the environment, which may hold secrets.
"""

import ctypes
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_PASSED = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
"""The variables that every process gets."""
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def start_python(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
) -> "subprocess.Popen[bytes]":
    """Starts `python -m MODULE ARGUMENTS` as `python_command` and `child_environment` say.

    `options`: those of Popen.
    """
    return subprocess.Popen(
        python_command(module, *arguments), env=child_environment(environment), **options
    )


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """A command line that runs a module with the module path of this process.

    The process is isolated (`python -I`), so that neither the working folder nor a variable adds a
    folder to the path, and `protect_memory` holds before it imports the module.
    """
    return (sys.executable, "-I", __file__, json.dumps(module_path()), module, *arguments)


def child_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of another process: what any program needs, and `variables`."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, **(variables or {})}


def module_path() -> list[str]:
    """`sys.path` without the working folder, which `python -m` and `python -c` put first.

    A program that is imported from there, and from nowhere else, comes last, where it hides
    nothing.
    """
    first, *others = sys.path or [""]
    with suppress(OSError):  # the working folder was deleted
        if not sys.flags.safe_path and Path(first).resolve() == Path.cwd():
            sources = str(Path(__file__).resolve().parents[1])
            return [*filter(None, others), *([] if sources in others else [sources])]
    return [*filter(None, sys.path)]


def trim_memory() -> None:
    """Returns to the system what the C library keeps of freed memory; glibc only."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def protect_memory() -> None:
    """Makes memory, environment and files of this process unreadable for others of its user.

    It also dumps no core.

    Raises:
        OSError: If the kernel refuses.
    """
    arguments = map(ctypes.c_long, (_PR_SET_DUMPABLE, 0, 0, 0, 0))
    if ctypes.CDLL(None, use_errno=True).prctl(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def forget_variable(name: str) -> None:
    """Removes an environment variable, also from what the kernel shows of this process."""
    get = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_void_p
    if address := get(name.encode()):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    os.environ.pop(name, None)


def _run() -> None:
    """Runs the module of a `python_command`."""
    path, module, *arguments = sys.argv[1:]
    sys.path[:] = json.loads(path)
    sys.argv = [module, *arguments]
    with suppress(OSError):
        protect_memory()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
