"""What the kernel takes from a process that is about to read untrusted bytes.

A mechanism that the kernel, or the container around it, does not offer is reported and left out.
The system calls are made with ctypes: the bindings on PyPI are unmaintained, need a library of the
system, or start programs instead of restricting the present one.

`enter_sandbox` tries all `MECHANISMS` in their order and reports what is in force. It needs a
process with one thread, and leaves it computation, memory and its open descriptors.
"""

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from eulerlora_contract.processes import protect_memory

__all__ = ["LAST_DESCRIPTOR", "MECHANISMS", "Sandbox", "end_with_parent", "enter_sandbox"]

_LIBC = ctypes.CDLL(None, use_errno=True)
LAST_DESCRIPTOR = 3
"""Standard streams, and the socket to the service."""

# linux/prctl.h, linux/capability.h
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION, _CAPABILITY_WORDS = 0x20080522, 6

# linux/landlock.h
_CREATE_RULESET, _RESTRICT_SELF, _VERSION_FLAG = 444, 446, 1
_RULESET = struct.Struct("=QQQ")
_FILE_RIGHTS = {1: 2**13 - 1, 2: 2**14 - 1, 3: 2**15 - 1, 5: 2**16 - 1}
"""All rights on files, by the first ABI with them."""
_NETWORK_ABI, _NETWORK_RIGHTS = 4, 0b11  # bind and connect TCP
_SCOPE_ABI, _SCOPES = 6, 0b11  # abstract Unix sockets, signals

# linux/seccomp.h, linux/audit.h, linux/bpf_common.h
_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _DENY, _KILL_PROCESS = 0x7FFF0000, 0x00050000 | 1, 0x80000000  # 1: EPERM
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # in seccomp_data
_INSTRUCTION = struct.Struct("=HBBI")
_ARCHITECTURES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}
"""Its number in audit records, and that of the system call seccomp."""
_ALLOWED_CALLS: dict[str, tuple[int, ...]] = {
    # read, write, close, recvfrom; on the socket to the service alone
    # mmap, mprotect, munmap, brk, mremap, madvise
    # rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack, setitimer, restart_syscall
    # getpid, gettimeofday, getrusage, sched_getaffinity, clock_gettime, getrandom
    # futex, rseq, exit, exit_group
    "x86_64": (
        *(0, 1, 3, 45), *(9, 10, 11, 12, 25, 28), *(13, 14, 15, 131, 38, 219),
        *(39, 96, 98, 204, 228, 318), *(202, 334, 60, 231),
    ),
    "aarch64": (
        *(63, 64, 57, 207), *(222, 226, 215, 214, 216, 233), *(134, 135, 139, 132, 103, 128),
        *(172, 169, 165, 123, 113, 278), *(98, 293, 93, 94),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sandbox:
    """The mechanisms that restrict a process.

    Attributes:
        in_force: What each does, by its name.
        missing: Why each of the others is not in force.
    """

    in_force: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def mechanisms(self) -> dict[str, bool]:
        return dict.fromkeys(self.in_force, True) | dict.fromkeys(self.missing, False)

    def __str__(self) -> str:
        missing = (f"{name} is missing ({reason})" for name, reason in self.missing.items())
        return ", ".join((*self.in_force.values(), *missing))


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def enter_sandbox() -> Sandbox:
    """Restricts this process for ever, as far as the kernel can; it must have one thread.

    Afterwards it can compute, allocate memory, and use the descriptors that are open.
    """
    sandbox = Sandbox()
    for name, restrict in MECHANISMS.items():
        try:
            sandbox.in_force[name] = restrict()
        except OSError as error:
            sandbox.missing[name] = error.strerror or str(error)
    return sandbox


def end_with_parent(signal: int) -> None:
    """Makes the kernel send a signal to this process when its parent ends."""
    _call(_LIBC.prctl, _PR_SET_PDEATHSIG, signal, 0, 0, 0)


def _protect_memory() -> str:
    protect_memory()
    return "not dumpable"


def _renounce_privileges() -> str:
    _call(_LIBC.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return "no new privileges"


def _renounce_capabilities() -> str:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)  # 0: this process
    _call(_LIBC.capset, header, (ctypes.c_uint32 * _CAPABILITY_WORDS)())
    return "no capabilities"


def _renounce_files() -> str:
    abi = _call(_LIBC.syscall, _CREATE_RULESET, None, 0, _VERSION_FLAG)
    rights = _FILE_RIGHTS[max(first for first in _FILE_RIGHTS if first <= abi)]
    network = _NETWORK_RIGHTS if abi >= _NETWORK_ABI else 0
    rules = _RULESET.pack(rights, network, _SCOPES if abi >= _SCOPE_ABI else 0)
    size = 8 * (1 + (abi >= _NETWORK_ABI) + (abi >= _SCOPE_ABI))
    ruleset = _call(_LIBC.syscall, _CREATE_RULESET, rules, size, 0)
    try:
        _call(_LIBC.syscall, _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return f"no files (Landlock ABI {abi})"


def _limit_resources() -> str:
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, LAST_DESCRIPTOR + 1),
    ):
        resource.setrlimit(limit, (value, value))
    return "no new files, processes or core dumps (limits)"


def _filter_calls() -> str:
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(0, f"no filter for {machine}")
    architecture, seccomp = _ARCHITECTURES[machine]
    calls = _ALLOWED_CALLS[machine]
    content = b"".join(
        _INSTRUCTION.pack(*instruction)
        for instruction in (
            (_LOAD, 0, 0, _ARCHITECTURE_AT),
            (_JUMP_IF_EQUAL, 1, 0, architecture),
            (_RETURN, 0, 0, _KILL_PROCESS),
            (_LOAD, 0, 0, _NUMBER_AT),
            *((_JUMP_IF_EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)),
            (_RETURN, 0, 0, _DENY),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    program = _FilterProgram(len(content) // _INSTRUCTION.size, content)
    if _call(_LIBC.syscall, seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program)):
        raise OSError(0, "a thread has another filter")
    return "no network, programs or other processes (seccomp)"


MECHANISMS: dict[str, Callable[[], str]] = {
    "no_new_privileges": _renounce_privileges,
    "not_dumpable": _protect_memory,
    "capabilities": _renounce_capabilities,
    "landlock": _renounce_files,
    "limits": _limit_resources,
    "seccomp": _filter_calls,
}
"""In this order: Landlock needs a descriptor, and seccomp forbids the calls of all others."""


def _call(function: Callable[..., int], *arguments: object) -> int:
    """Calls a function of the C library. Raises OSError."""
    result = function(*(ctypes.c_long(one) if isinstance(one, int) else one for one in arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
