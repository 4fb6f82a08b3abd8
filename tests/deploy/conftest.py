"""What tests of the deployment share: its files, parsed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


class ComposeLoader(yaml.SafeLoader):
    """YAML with the tag by which one compose file takes back what another says."""


ComposeLoader.add_constructor("!reset", lambda *_: [])


@pytest.fixture(scope="session")
def deploy_folder() -> Path:
    """The folder of the deployment's files."""
    return DEPLOY


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """The compose file's one service."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found["services"]["eulerlora"]


@pytest.fixture(scope="session")
def compose_overlay() -> dict[str, Any]:
    """What is laid over the service on a machine without a GPU."""
    found = yaml.load((DEPLOY / "compose.cpu.yaml").read_text(), ComposeLoader)
    overlay: dict[str, Any] = found["services"]["eulerlora"]
    return overlay


@pytest.fixture(scope="session")
def manifests() -> dict[str, Any]:
    """The Kubernetes objects by kind."""
    folder = DEPLOY / "kubernetes" / "base"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    found = [yaml.safe_load((folder / each).read_text()) for each in listed]
    return {each["kind"]: each for each in found}


@pytest.fixture(scope="session")
def pod(manifests: dict[str, Any]) -> dict[str, Any]:
    """The deployment's pod."""
    spec: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="session")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod's one container."""
    (only,) = pod["containers"]
    return only
