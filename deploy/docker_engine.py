"""The image test's engine where Docker answers."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.engines import TAG, UNKNOWN_USER, EngineError, ImageConfig, Result, output, run, show


def docker_answers() -> bool:
    """Whether a Docker engine can be spoken to."""
    return shutil.which("docker") is not None and not run(["docker", "info"]).returncode


@dataclass(frozen=True)
class Docker:
    """A Docker engine; the base is the Dockerfile's own."""

    name: str = "Docker, on the Dockerfile's own base"

    def build(self, context: Path) -> None:
        show(["docker", "build", "--tag", TAG, str(context)])

    def config(self) -> ImageConfig:
        return ImageConfig.of_docker(json.loads(output(["docker", "inspect", TAG]))[0]["Config"])

    @contextmanager
    def started(self) -> Iterator["DockerContainer"]:
        identity = output(
            ["docker", "run", "--detach", "--read-only", "--tmpfs", "/tmp", "--network", "none",
             "--user", f"{UNKNOWN_USER}:{UNKNOWN_USER}", "--cap-drop", "ALL",
             "--security-opt", "no-new-privileges", TAG]
        )  # fmt: skip
        try:
            yield DockerContainer(identity)
        finally:
            output(["docker", "rm", "--force", "--volumes", identity])


@dataclass(frozen=True)
class DockerContainer:
    """A container of a Docker engine."""

    identity: str

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Result:
        ids = f"{user}:{user}"
        return run(["docker", "exec", "-i", "--user", ids, self.identity, *command], stdin)

    def stop(self, name: str, timeout_s: float) -> int:
        output(["docker", "kill", "--signal", name, self.identity])
        waiting = ["docker", "wait", self.identity]
        try:
            ended = subprocess.run(waiting, capture_output=True, check=True, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"wanted an end within {timeout_s:.0f} s of {name}") from error
        return int(ended.stdout)
