"""How OpenMP's threads wait, as OpenMP itself tells when it is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eulerlora.openmp import WAITING


@pytest.mark.skipif(sys.platform != "linux", reason="torch has GNU's OpenMP on Linux only")
@pytest.mark.parametrize(
    ("own", "policy", "count"), [({}, "ACTIVE", "10000"), ({"GOMP_SPINCOUNT": "7"}, "PASSIVE", "7")]
)
def test_the_program_tells_openmp_before_it_is_loaded_and_leaves_a_user_s_choice(
    tmp_path: Path, own: dict[str, str], policy: str, count: str
) -> None:
    command = "from eulerlora_client.commands.program import main; main()"
    inherited = {name: each for name, each in os.environ.items() if name not in WAITING}
    done = subprocess.run(
        [sys.executable, "-c", command, "predict", str(tmp_path), str(tmp_path / "image.png")],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | own | {"OMP_DISPLAY_ENV": "verbose"},
    )
    assert f"OMP_WAIT_POLICY = '{policy}'" in done.stderr
    assert f"GOMP_SPINCOUNT = '{count}'" in done.stderr
