"""deploy/compose.yaml and its override."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_the_override_without_a_gpu_builds_the_image_for_a_cpu(deploy_folder: Path) -> None:
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("!reset", lambda *_: None)
    override = yaml.load((deploy_folder / "compose.cpu.yaml").read_text(), loader)
    arguments = override["services"]["eulerlora"]["build"]["args"]
    assert arguments == {"TORCH": "cpu"}
    assert arguments.keys() <= set(
        re.findall(r"^ARG (\w+)", (deploy_folder.parent / "Dockerfile").read_text(), re.MULTILINE)
    )


def test_the_container_has_no_privileges_and_writes_only_to_tmp_and_the_audit_log(
    compose: dict[str, Any],
) -> None:
    assert compose["read_only"] is True
    assert compose["cap_drop"] == ["ALL"]
    assert compose["security_opt"] == ["no-new-privileges:true"]
    assert [mount.partition(":")[0] for mount in compose["tmpfs"]] == ["/tmp"]
    volume, secrets = compose["volumes"]
    assert f"--audit={volume.partition(':')[2]}/audit.jsonl" in compose["command"]
    assert secrets["read_only"] is True


def test_keys_are_mounted_with_their_folder_so_that_a_retired_key_is_seen(
    compose: dict[str, Any],
) -> None:
    _, secrets = compose["volumes"]
    for option in ("--keys", "--audit-secret"):
        (path,) = [
            word.split("=")[1] for word in compose["command"] if word.startswith(f"{option}=")
        ]
        assert Path(path).parent == Path(secrets["target"])
    assert Path(secrets["source"].partition(":-")[2].rstrip("}")).name == "secrets"
