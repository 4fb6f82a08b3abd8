"""Counters of joules, where a machine has them."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from training import energy
from training.energy import Reading, energy_used, readings


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CPU package that counts to 100 J and shows 90 J; there is no GPU."""
    place = tmp_path / "intel-rapl:0"
    place.mkdir()
    (place / "energy_uj").write_text("90000000\n")
    (place / "max_energy_range_uj").write_text("100000000\n")
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "NVML", "libabsent.so.1")
    return place


def test_what_a_package_used_is_known_over_the_start_of_a_new_count(package: Path) -> None:
    with energy_used() as used:
        (package / "energy_uj").write_text("25000000\n")
    assert used == {"cpu package 0": pytest.approx(35.0)}


def test_what_cannot_be_read_is_absent(package: Path) -> None:
    (package / "energy_uj").unlink()
    with energy_used() as used:
        pass
    assert used == {}


def test_a_reading_since_another_may_pass_the_range_once() -> None:
    assert Reading(5.0).since(Reading(3.0)) == 2.0
    assert Reading(1.0, 10.0).since(Reading(8.0, 10.0)) == 3.0


class FakeLibrary:
    """NVML's four functions for two GPUs, of which the second one counts no energy."""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count: object) -> int:  # noqa: N802
        return write(count, 2)

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: object) -> int:  # noqa: N802
        return write(device, index + 1)

    def nvmlDeviceGetTotalEnergyConsumption(  # noqa: N802
        self, device: ctypes.c_void_p, millijoules: object
    ) -> int:
        return write(millijoules, 4500) if device.value == 1 else 3


def write(reference: object, value: int) -> int:
    reference._obj.value = value  # type: ignore[attr-defined]
    return 0


def test_a_gpu_s_millijoules_are_read_through_nvml(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library: Callable[[str], FakeLibrary] = lambda _: FakeLibrary()  # noqa: E731
    monkeypatch.setattr("training.energy.ctypes.CDLL", library)
    assert readings()["gpu 0"] == Reading(4.5)
    assert "gpu 1" not in readings()
