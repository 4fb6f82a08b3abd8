"""Fuzzes targets with atheris, guided by the coverage of the code.

    python -m tests.fuzz [--seconds 3600] [--seed 1] [--folder build/fuzz] [TARGET ...]
    python -m tests.fuzz --replay build/fuzz/keys-failed-... keys

The targets of the clinic are those of `python -m clinic.tests.fuzz`.

A failing input is kept in the folder, and so are the inputs that reached new code, with which the
next run begins. It is a failure to raise an error that the target does not name, to take more calls
or memory than the size of the input allows, and to take two minutes.
"""

import argparse
import hashlib
import logging
import os
import random
import re
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType

import atheris

MAX_CALLS, MAX_CALLS_PER_BYTE = 200_000, 500
MAX_MEMORY_BYTES = 256 * 2**20
MAX_INPUT_BYTES = 20_000
RUN_TIMEOUT_S = 120
CODE = (
    "eulerlora", "eulerlora_client", "eulerlora_clinic", "eulerlora_contract", "service",
    "training", "h11", "pydicom.dataelem", "pydicom.encaps", "pydicom.filereader", "pydicom.values",
    "python_multipart", "starlette.formparsers", "tomllib",
)  # fmt: skip
"""Whose coverage guides the mutations."""
TOKENS = (
    b"[" * 3000, b"a = " + b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"1e99999", b"NaN",
    b"-1", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"'''", b"\r\n\r\n", b"\\ud800", b"\xff" * 8,
    b"\xff\xff\xff\x7f", b"\0" * 8, b",", b"\n", b"..", b"a." * 100, b" " * 3000,
)  # fmt: skip
"""Rarely the result of single changes."""


@dataclass(frozen=True)
class Target:
    """A reader of input from outside.

    Attributes:
        read: From bytes.
        errors: That it may raise.
        seeds: Valid input.
        runs: In the tests.
    """

    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], Sequence[bytes]]
    runs: int


class TooMuchWorkError(BaseException):
    """An input takes more calls or memory than its size allows; `except Exception` passes it on."""


def checked(target: Target, content: bytes) -> None:
    """Reads an input within the limits on calls and memory, and with the target's errors alone."""
    calls, most = 0, MAX_CALLS + MAX_CALLS_PER_BYTE * len(content)

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > most:
            raise TooMuchWorkError(f"more than {most:,} calls for {len(content):,} bytes")

    before = peak_bytes()
    sys.setprofile(count)
    try:
        with suppress(*target.errors):
            target.read(content)
    finally:
        sys.setprofile(None)
    if peak_bytes() - before > MAX_MEMORY_BYTES:
        raise TooMuchWorkError(f"more than {MAX_MEMORY_BYTES:,} bytes for {len(content):,} bytes")


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mutated(content: bytes, max_bytes: int, seed: int) -> bytes:
    draw = random.Random(seed)
    if draw.random() < 0.8:
        return bytes(atheris.Mutate(content, max_bytes))
    at = draw.randrange(len(content) + 1)
    return (content[:at] + draw.choice(TOKENS) + content[at:])[:max_bytes]


def fuzz(name: str, target: Target, folder: Path, seed: int, limit: str) -> None:
    """Fuzzes a target and ends the process; all output goes to the target's log."""
    corpus = folder / name
    with (folder / f"{name}.log").open("wb") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    logging.disable()
    corpus.mkdir(exist_ok=True)
    for number, content in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(content)
        with suppress(*target.errors):
            target.read(content)  # without limits: loads what a first call loads
    options = [
        f"-seed={seed}", limit, f"-timeout={RUN_TIMEOUT_S}", f"-max_len={MAX_INPUT_BYTES}",
        "-rss_limit_mb=4096", f"-artifact_prefix={folder / name}-", str(corpus),
    ]  # fmt: skip

    def read(content: bytes) -> None:
        try:
            checked(target, content)
        except BaseException:
            digest = hashlib.sha256(content).hexdigest()
            (folder / f"{name}-failed-{digest[:16]}").write_bytes(content)
            raise

    atheris.Setup([sys.argv[0], *options], read, custom_mutator=mutated)
    atheris.Fuzz()


def outcome(name: str, target: Target, folder: Path, seed: int, limit: str) -> tuple[bool, str]:
    """Fuzzes a target in a process of its own; returns whether it passed, and its summary."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            fuzz(name, target, folder, seed, limit)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    passed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log = (folder / f"{name}.log").read_text(errors="replace")
    done = re.search(r"Done .*", log)
    return passed, done[0] if passed and done else f"FAILED\n{log[-6000:]}"


def main(package: str) -> int:
    """Fuzzes the targets of a package; returns the exit status of the process."""
    with atheris.instrument_imports(include=list(CODE)):
        targets: Mapping[str, Target] = import_module(f"{package}.targets").TARGETS
    parser = argparse.ArgumentParser(prog=f"python -m {package}")
    parser.add_argument("targets", nargs="*", default=[*targets], metavar="TARGET")
    parser.add_argument("--seconds", type=int, help="for all targets; else a few runs of each")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--folder", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--replay", type=Path, help="read this input, as the target")
    arguments = parser.parse_args()
    names, are_passed = arguments.targets, []
    if arguments.replay:
        checked(targets[names[0]], arguments.replay.read_bytes())
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        seconds = arguments.seconds and max(1, arguments.seconds // len(names))
        limit = f"-max_total_time={seconds}" if seconds else f"-runs={targets[name].runs}"
        passed, summary = outcome(name, targets[name], arguments.folder, arguments.seed, limit)
        are_passed.append(passed)
        print(f"{name}, seed {arguments.seed}: {summary}", flush=True)
    return 0 if all(are_passed) else 1
