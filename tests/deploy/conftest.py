"""The parsed files of the deployment."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
HELM = shutil.which("helm", path=f"{ROOT / 'build'}{os.pathsep}{os.environ['PATH']}")
IMAGE = f"registry.example/eulerlora@sha256:{'0123456789abcdef' * 4}"

Objects = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def deploy_folder() -> Path:
    return DEPLOY


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """The only service of compose.yaml."""
    parsed: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return parsed["services"]["eulerlora"]


@pytest.fixture(scope="session")
def helm() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs helm on the chart: a command, options of `--set` and further options."""
    if HELM is None:
        pytest.skip("needs helm: make build/helm")

    def run(command: str, *settings: str, options: tuple[str, ...] = ()) -> Any:
        words = [HELM, *command.split(), str(CHART), "--namespace", "clinic", *options]
        words += [word for setting in settings for word in ("--set", setting)]
        return subprocess.run(words, check=False, capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def rendered(helm: Callable[..., "subprocess.CompletedProcess[str]"]) -> Callable[..., Objects]:
    """The objects of a release `eulerlora` by kind, for options of `--set`."""

    def objects(*settings: str, options: tuple[str, ...] = ()) -> Objects:
        done = helm("template eulerlora", f"image={IMAGE}", *settings, options=options)
        assert done.returncode == 0, done.stderr
        return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}

    return objects


@pytest.fixture(scope="session")
def manifests(rendered: Callable[..., Objects]) -> Objects:
    """The objects that the default values make, and an ingress."""
    return rendered("ingress.host=eulerlora.example")


@pytest.fixture(scope="session")
def pod(manifests: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = manifests["Deployment"]["spec"]["template"]["spec"]
    return spec


@pytest.fixture(scope="session")
def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return only
