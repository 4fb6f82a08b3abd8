"""deploy/eulerlora.service, checked by systemd."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from service.settings import ServiceSettings


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(deploy_folder: Path, tmp_path: Path) -> None:
    text = (deploy_folder / "eulerlora.service").read_text()
    unit = tmp_path / "eulerlora.service"
    unit.write_text(text.replace("/opt/eulerlora/bin/eulerlora", shutil.which("true") or ""))
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (
        0,
        [],
    )


def test_the_unit_is_started_again_after_a_signal_that_ends_it(deploy_folder: Path) -> None:
    assert "\nRestart=always\n" in (deploy_folder / "eulerlora.service").read_text()


def test_the_unit_waits_for_the_answers_of_accepted_requests(deploy_folder: Path) -> None:
    (seconds,) = re.findall(
        r"^TimeoutStopSec=(\d+)$", (deploy_folder / "eulerlora.service").read_text(), re.MULTILINE
    )
    assert int(seconds) > ServiceSettings().life.grace_s
