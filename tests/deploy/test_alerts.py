"""deploy/prometheus-rules.yaml, evaluated by Prometheus."""

import shutil
import subprocess
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("alerts.yaml")


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool")
def test_every_alert_fires_when_it_should_and_only_then(
    deploy_folder: Path, tmp_path: Path
) -> None:
    for source in (deploy_folder / "prometheus-rules.yaml", CASES):
        (tmp_path / source.name).write_bytes(source.read_bytes())
    for command in (["check", "rules", "prometheus-rules.yaml"], ["test", "rules", CASES.name]):
        result = subprocess.run(
            ["promtool", *command], check=False, capture_output=True, text=True, cwd=tmp_path
        )
        assert result.returncode == 0, result.stdout + result.stderr
