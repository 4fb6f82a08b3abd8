"""deploy/compose.yaml and its override."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

needs_compose = pytest.mark.skipif(
    subprocess.run(
        "docker compose version", shell=True, check=False, capture_output=True
    ).returncode != 0,
    reason="needs docker with its compose plugin",
)  # fmt: skip


def rendered(*files: Path) -> dict[str, Any]:
    """Needs no engine."""
    options = [word for file in files for word in ("--file", str(file))]
    command = ["docker", "compose", *options, "config", "--format", "json"]
    environment = {**os.environ, "EULERLORA_BASE": "python@sha256:0"}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
    service: dict[str, Any] = json.loads(output)["services"]["eulerlora"]
    return service


@needs_compose
def test_compose_renders_the_file(deploy_folder: Path) -> None:
    service = rendered(deploy_folder / "compose.yaml")
    assert service["read_only"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"


@needs_compose
def test_compose_renders_the_override_without_a_gpu(deploy_folder: Path) -> None:
    service = rendered(deploy_folder / "compose.yaml", deploy_folder / "compose.cpu.yaml")
    assert not service["deploy"]["resources"].get("reservations", {}).get("devices")
    assert "memory" in service["deploy"]["resources"]["limits"]


def test_the_container_has_no_privileges_and_writes_only_to_tmp_and_the_audit_log(
    compose: dict[str, Any],
) -> None:
    assert compose["read_only"] is True
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    assert [mount.partition(":")[0] for mount in compose["tmpfs"]] == ["/tmp"]
    (volume,) = compose["volumes"]
    assert f"--audit={volume.partition(':')[2]}/audit.jsonl" in compose["command"]


def test_the_command_names_exactly_the_mounted_secrets(compose: dict[str, Any]) -> None:
    named = {word.partition("=")[2] for word in compose["command"] if "/run/secrets/" in word}
    assert named == {f"/run/secrets/{secret}" for secret in compose["secrets"]}
