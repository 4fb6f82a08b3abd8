"""The parsed files of the deployment."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="session")
def deploy_folder() -> Path:
    return DEPLOY


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """The only service of compose.yaml."""
    parsed: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return parsed["services"]["eulerlora"]


@pytest.fixture(scope="session")
def manifests() -> dict[str, Any]:
    """The Kubernetes objects by kind."""
    folder = DEPLOY / "kubernetes" / "base"
    files = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    objects = [yaml.safe_load((folder / file).read_text()) for file in files]
    return {manifest["kind"]: manifest for manifest in objects}


@pytest.fixture(scope="session")
def pod(manifests: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="session")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return only
