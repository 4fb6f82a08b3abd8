"""The cases of OpenVINO, in a process of their own.

A process that has made their dozens of graphs has crashed later, when it started the processes of a
data loader: the kernel could not restore its registers (a guest with AMX).
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import needs_openvino

CASES = Path(__file__).parent / "openvino_cases.py"


@needs_openvino
def test_the_cases_of_openvino_pass() -> None:
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CASES],
        cwd=Path(__file__).parents[3],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
