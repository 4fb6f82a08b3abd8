"""Memory of this process, from the kernel (proc_pid_status(5)).

The high-water mark is read there and not from `ru_maxrss`, which a child inherits from its parent.
"""

import re
from collections.abc import Callable
from pathlib import Path


def peak_growth(work: Callable[[], object]) -> int:
    """Returns the highest memory of this process while `work` runs, less that before, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status_bytes("VmRSS")
    work()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    assert match is not None
    return 1024 * int(match.group(1))
