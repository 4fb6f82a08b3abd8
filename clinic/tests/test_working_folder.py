"""A service in a folder of foreign files, and what a process of its user learns about it.

The processes have no capabilities, as those of a user other than root.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from clinic.tests.audit_entries import SECRET

VARIABLE = "EULERLORA_AUDIT_SECRET"
FOREIGN = ("resource", "json", "sitecustomize", "pydicom", "training", "service", "torch", "click")
CAPBSET_DROP, CAPABILITY_VERSION = 24, 0x20080522  # linux/prctl.h, linux/capability.h
READS = """
import sys
for name in ("environ", "mem", "maps", "root/etc/hostname"):
    try:
        with open(f"/proc/{sys.argv[1]}/{name}", "rb") as file:
            print(name, "opened", b"AUDIT_SECRET" in file.read() if name == "environ" else "")
    except OSError as error:
        print(name, "refused")
"""


BARE = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None)
for capability in range(64):
    libc.prctl({CAPBSET_DROP}, capability, 0, 0, 0)
header = (ctypes.c_uint32 * 2)({CAPABILITY_VERSION}, 0)
assert libc.capset(header, (ctypes.c_uint32 * 6)()) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""


def bare(*command: str) -> list[str]:
    """A command that runs another one without the capabilities of root."""
    return [sys.executable, "-I", "-c", BARE, *command]


def readable(pid: int) -> set[str]:
    """What another process of the same user can open of a process."""
    command = bare(sys.executable, "-I", "-c", READS, str(pid))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines() if "opened" in line}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with modules that leave a trace if they run."""
    for name in FOREIGN:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__)"
        )
    return tmp_path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a program in the folder, with the secret of an audit log in its environment."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            bare(*command), cwd=folder, env={**os.environ, VARIABLE: SECRET.decode()}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if ready := re.search(r"http://127\S+", line):
            return ready[0]
    raise AssertionError("the service did not start")


def test_the_secret_of_a_service_is_in_no_file_of_proc(start: Start, folder: Path, png) -> None:
    log = str(folder / "audit.jsonl")
    program = Path(sys.executable).with_name("eulerlora")
    service = start(str(program), "serve", "--port", "0", "--log-format", "text", "--audit", log)
    url = address_of(service)
    answer = httpx.post(url + "/predict", content=png, headers={"Content-Type": "image/png"})
    assert answer.status_code == 200, answer.text
    family = [service.pid, *(one.pid for one in psutil.Process(service.pid).children(True))]
    assert len(family) >= 3  # with the fork server and a decoder
    for pid in family:
        assert readable(pid) == set(), psutil.Process(pid).cmdline()
        assert SECRET not in Path(f"/proc/{pid}/environ").read_bytes()  # what root reads
    unprotected = start("sleep", "600")
    assert "environ" in readable(unprotected.pid)
    assert not (folder / "ran").exists()
