"""deploy/compose.yaml and what is laid over it."""

import json
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
    """The service as docker compose understands it; needs no engine."""
    chosen = [word for each in files for word in ("--file", str(each))]
    command = ["docker", "compose", *chosen, "config", "--format", "json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    service: dict[str, Any] = json.loads(output)["services"]["eulerlora"]
    return service


@needs_compose
def test_compose_understands_the_file(deploy_folder: Path) -> None:
    service = rendered(deploy_folder / "compose.yaml")
    assert service["read_only"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"


@needs_compose
def test_compose_understands_the_file_without_a_gpu(deploy_folder: Path) -> None:
    service = rendered(deploy_folder / "compose.yaml", deploy_folder / "compose.cpu.yaml")
    assert not service["deploy"]["resources"].get("reservations", {}).get("devices")
    assert "memory" in service["deploy"]["resources"]["limits"]


def test_a_gpu_is_reserved_and_taken_back(
    compose: dict[str, Any], compose_overlay: dict[str, Any]
) -> None:
    (device,) = compose["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert compose_overlay == {"deploy": {"resources": {"reservations": {"devices": []}}}}


def test_the_container_has_no_privileges_and_writes_nowhere_else(compose: dict[str, Any]) -> None:
    assert compose["read_only"] is True
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    assert [each.partition(":")[0] for each in compose["tmpfs"]] == ["/tmp"]
    (volume,) = compose["volumes"]
    assert f"--audit={volume.partition(':')[2]}/audit.jsonl" in compose["command"]


def test_every_secret_that_the_command_names_is_mounted(compose: dict[str, Any]) -> None:
    named = {each.partition("=")[2] for each in compose["command"] if "/run/secrets/" in each}
    assert named == {f"/run/secrets/{each}" for each in compose["secrets"]}
