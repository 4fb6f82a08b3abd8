"""The number of CPUs that this process may use, also in a container with a quota."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")


def available_cpus(root: Path = _ROOT) -> int:
    """Number of CPUs in the process's affinity, or fewer if its control groups have a quota.

    A quota is rounded down, but to at least 1: more threads would be stopped for a part of every
    period. `os.process_cpu_count` ignores quotas. `root` is that of the file system.
    """
    quotas = list(_quotas(root))
    return max(1, int(min([len(os.sched_getaffinity(0)), *quotas])))


def _quotas(root: Path) -> Iterator[float]:
    """Yields the quotas, in CPUs, of the control groups of this process and those above them.

    Version 2 has the file cpu.max, version 1 two files below the controller `cpu`. In a container,
    the path of the group may be that on the host, where its own files are at the mount.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folder = mount / "cpu" if controllers else mount
        group = PurePosixPath(path).relative_to("/")
        for parent in (group, *group.parents):
            yield from _quota(folder / parent)


def _quota(folder: Path) -> Iterator[float]:
    files = [["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]]
    for names in files:
        try:
            words = " ".join((folder / name).read_text(encoding="utf-8") for name in names).split()
            quota, period = map(float, words)  # fails for "max"
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:  # -1 is none
            yield quota / period
