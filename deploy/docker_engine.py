"""Docker as the engine of the image test."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.engines import TAG, UNKNOWN_USER, EngineError, ImageConfig, Result, output, run, show


def docker_answers() -> bool:
    """True if a Docker engine is available."""
    return shutil.which("docker") is not None and not run(["docker", "info"]).returncode


@dataclass(frozen=True)
class Docker:
    """A Docker engine. The base image is the one that the Dockerfile names."""

    name: str = "Docker, on the base image of the Dockerfile"

    def build(self, context: Path) -> None:
        show(["docker", "build", "--tag", TAG, str(context)])

    def config(self) -> ImageConfig:
        return ImageConfig.of_docker(json.loads(output(["docker", "inspect", TAG]))[0]["Config"])

    @contextmanager
    def started(self) -> Iterator["DockerContainer"]:
        identifier = output(
            ["docker", "run", "--detach", "--read-only", "--tmpfs", "/tmp", "--network", "none",
             "--user", f"{UNKNOWN_USER}:{UNKNOWN_USER}", "--cap-drop", "ALL",
             "--security-opt", "no-new-privileges", TAG]
        )  # fmt: skip
        try:
            yield DockerContainer(identifier)
        finally:
            output(["docker", "rm", "--force", "--volumes", identifier])


@dataclass(frozen=True)
class DockerContainer:
    """A container of a Docker engine."""

    identifier: str

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Result:
        user_and_group = f"{user}:{user}"
        return run(
            ["docker", "exec", "-i", "--user", user_and_group, self.identifier, *command], stdin
        )

    def stop(self, name: str, timeout_s: float) -> int:
        output(["docker", "kill", "--signal", name, self.identifier])
        wait = ["docker", "wait", self.identifier]
        try:
            ended = subprocess.run(wait, capture_output=True, check=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"expected the server to end within {timeout_s:.0f} s of {name}"
            ) from error
        return int(ended.stdout)
