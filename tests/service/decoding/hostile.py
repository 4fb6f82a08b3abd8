"""A program that forks decoders in which foreign code runs, as after an exploit of a codec.

The sampling digest of a job is the name of what the code does, with its argument after a colon.
`unrestricted` is the same program without a sandbox. What the code has to tell is in the pixels.
"""

import ctypes
import json
import mmap
import os
import pickle
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from service.decoding import worker
from service.decoding.messages import DecodedInput, DecodeJob, Failure
from tests.service.decoding.frames import HEADER
from tests.service.settings import settings_of

HANG_S = 600.0
LAST_DESCRIPTOR = 3  # the connection to the service
BAD_ADDRESS = 14  # EFAULT
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WAIT_ALL = 0x4206, 0x4207, 17, 0x40000000
RUN_JOB, DECODE = worker.run_job, worker.decode
LIBC = ctypes.CDLL(None, use_errno=True)


def call(function: Callable[..., int], *arguments: int) -> None:
    """Calls a function of the C library. Raises OSError."""
    if function(*map(ctypes.c_long, arguments)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_memory(pid: str) -> None:
    """Reads another process at an address that it does not have."""
    try:
        parts = (np.array([1, 1], np.uint64).ctypes.data, 1)
        call(LIBC.syscall, PROCESS_VM_READV[platform.machine()], int(pid), *parts, *parts, 0)
    except OSError as error:
        if error.errno != BAD_ADDRESS:
            raise


def trace(pid: str) -> None:
    """Traces another process, and lets it go."""
    call(LIBC.ptrace, PTRACE_SEIZE, int(pid), 0, 0)
    call(LIBC.ptrace, PTRACE_INTERRUPT, int(pid), 0, 0)
    os.waitpid(int(pid), WAIT_ALL)
    call(LIBC.ptrace, PTRACE_DETACH, int(pid), 0, 0)


def fork(_: str) -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)


def connect(address: str) -> None:
    family = socket.AF_UNIX if "/" in address else socket.AF_INET
    with socket.socket(family) as connection:
        connection.connect(address if "/" in address else ("127.0.0.1", int(address)))


ATTACKS: dict[str, Callable[[str], object]] = {
    "read": lambda path: Path(path).read_bytes(),
    "write": lambda path: Path(path).write_bytes(b"foreign"),
    "rename": lambda path: Path(path).rename(path),
    "list": os.listdir,
    "connect": connect,
    "listen": lambda _: socket.create_server(("127.0.0.1", 0)).close(),
    "execute": lambda path: os.waitpid(os.posix_spawn(path, [path], {}), 0),
    "fork": fork,
    "signal": lambda pid: os.kill(int(pid), signal.SIGCONT),
    "trace": trace,
    "memory": read_memory,
}


def attack(name: str, argument: str) -> str:
    """Done, or why the kernel refused."""
    try:
        ATTACKS[name](argument)
    except OSError as error:
        return str(error.strerror)
    return "done"


KEPT: list[bytes] = []
"""The images that the foreign code has seen."""


def shared_memory(length: int) -> str:
    """Done, or why the kernel refused."""
    try:
        mmap.mmap(-1, length).close()
    except OSError as error:
        return str(error.strerror)
    return "done"


def forgery(kind: str, job: DecodeJob) -> bytes:
    """Bytes that are not the message of a result."""
    result = RUN_JOB(job, settings_of("images"))
    assert isinstance(result, DecodedInput)
    return {
        "a pickle": pickle.dumps(result),
        "4 GB": HEADER.pack(2, 2**32),
        "two messages": 2 * result.message(),
    }[kind]


def run_job(job: DecodeJob, limits: Any) -> DecodedInput | Failure:
    """Runs the foreign code, then decodes the image or tells what the code has done."""
    name, _, argument = job.sampling_digest.partition(":")
    report = None
    if name == "shared memory":
        report = shared_memory(int(argument))
    elif name == "exit":
        os._exit(int(argument))
    elif name == "timer":
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
        sum(range(10**15))
    elif name == "keep":
        report = str(len(KEPT))
        KEPT.append(job.content)
    elif name in ATTACKS:
        report = attack(name, argument)
    elif name == "environment":
        report = json.dumps(dict(os.environ))
    elif name == "descriptors":
        links = (Path(f"/proc/self/fd/{one}") for one in range(64))
        report = json.dumps([str(one.readlink()) for one in links if one.is_symlink()])
    elif name == "forge":
        os.write(LAST_DESCRIPTOR, forgery(argument, job))
        os.read(LAST_DESCRIPTOR, 1)  # until the service closes the connection
    elif name == "defect":
        worker.decode = lambda *_: 1 // 0
    elif name == "grow":
        worker.decode = lambda *_: bytearray(3 * 1024**3)
    elif name == "slow":
        time.sleep(0.5)
    elif name == "hang":
        time.sleep(HANG_S)
    elif name == "spin":
        sum(range(10**15))
    elif name in signal.Signals.__members__ and (not argument or Path(argument).exists()):
        if argument:  # the path of a file: the fault happens once
            Path(argument).unlink()
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(HANG_S)  # SIGSTOP
    try:
        result = RUN_JOB(job, limits)
        if report is not None:
            assert isinstance(result, DecodedInput)
            text = np.zeros(result.pixels.size, np.uint8)
            text[: len(report)] = np.frombuffer(report.encode(), np.uint8)
            result = replace(result, pixels=(text.reshape(result.pixels.shape) / np.float32(255)))
        return result
    finally:
        worker.decode = DECODE


def main() -> None:
    """Runs the program."""
    worker.run_job = run_job
    with socket.socket(fileno=int(sys.argv[1])) as control:
        worker.serve_forks(control)


if __name__ == "__main__":
    main()
