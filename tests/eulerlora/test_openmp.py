"""eulerlora.nn.openmp: the wait policy that OpenMP reads when it is loaded."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from eulerlora.nn.openmp import WAIT_POLICY, set_openmp_wait_policy


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment without OpenMP's variables; restored after the test."""
    for name in WAIT_POLICY:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.skipif(sys.platform != "linux", reason="the policy is set on Linux only")
@pytest.mark.parametrize("user", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "passive"}])
def test_the_policy_is_set_unless_the_user_has_set_one(
    environment: None, monkeypatch: pytest.MonkeyPatch, user: dict[str, str]
) -> None:
    for name, value in user.items():
        monkeypatch.setenv(name, value)
    set_openmp_wait_policy()
    assert {name: os.environ[name] for name in WAIT_POLICY if name in os.environ} == (
        user or WAIT_POLICY
    )


def test_nothing_is_set_on_other_systems(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    set_openmp_wait_policy()
    assert os.environ.keys().isdisjoint(WAIT_POLICY)


def test_the_openmp_library_of_torch_reads_the_policy_when_it_is_loaded() -> None:
    torch = find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    libraries = list(Path(torch.origin).parent.glob("lib/libgomp*"))
    if not libraries:
        pytest.skip("this build of torch has no library of GNU OpenMP")
    program = (
        "import ctypes\n"
        "from eulerlora.nn.openmp import set_openmp_wait_policy\n"
        "set_openmp_wait_policy()\n"
        f"ctypes.CDLL({str(libraries[0])!r})\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name not in WAIT_POLICY}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=inherited | {"OMP_DISPLAY_ENV": "verbose"},
    )
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in done.stderr
    assert "GOMP_SPINCOUNT = '10000'" in done.stderr
