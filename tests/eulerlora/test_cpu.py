"""The CPUs of a process in control groups of both versions."""

import os
from pathlib import Path

import pytest

from eulerlora.cpu import available_cpus

V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


@pytest.fixture(autouse=True)
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Writes /proc/self/cgroup and files below /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name if name.startswith("proc") else root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, 16),
        ("0::/\n", {"cpu.max": "800000\n"}, 16),
        ("0::/\n", {}, 16),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("0::/kubepods/pod1\n", {"cpu.max": "200000 100000\n"}, 2),  # of the host, not in sight
        ("0::/../other\n", {"cpu.max": "200000 100000\n"}, 2),
        ("4:cpu,cpuacct:/\n0::/\n", {f"cpu/{V1[0]}": "300000", f"cpu/{V1[1]}": "100000"}, 3),
        ("4:cpuacct,cpu:/docker/1\n", {f"cpu/{V1[0]}": "150000", f"cpu/{V1[1]}": "50000"}, 3),
        ("4:cpu:/\n", {f"cpu/{V1[0]}": "-1", f"cpu/{V1[1]}": "100000"}, 16),
        ("4:cpuset:/\n", {f"cpu/{V1[0]}": "100000", f"cpu/{V1[1]}": "100000"}, 16),
    ],
)
def test_the_quota_of_every_control_group_limits_the_cpus(
    tmp_path: Path, groups: str, files: dict[str, str], cpus: int
) -> None:
    assert available_cpus(system(tmp_path, groups, files)) == cpus


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == 16
    assert 1 <= available_cpus() <= 16
