"""What the image test asks of a program that builds an image and starts it."""

import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TAG = "eulerlora"
UNKNOWN_USER = 12345
ROOT_USER = 0

Result = subprocess.CompletedProcess[str]


class EngineError(Exception):
    """No engine, or one that failed; a line for the user."""


@dataclass(frozen=True)
class ImageConfig:
    """What an image says of how it is started; `health_check` without Docker's leading CMD."""

    command: tuple[str, ...]
    environment: tuple[str, ...]
    user: str
    folder: str
    stop_signal: str
    health_check: tuple[str, ...]

    @classmethod
    def of_docker(cls, config: dict[str, Any]) -> "ImageConfig":
        """From the `Config` of Docker's image format."""
        return cls(
            command=(*(config.get("Entrypoint") or ()), *config["Cmd"]),
            environment=tuple(config["Env"]),
            user=config["User"],
            folder=config["WorkingDir"],
            stop_signal=config.get("StopSignal", "SIGTERM"),
            health_check=tuple((config.get("Healthcheck") or {}).get("Test", ())[1:]),
        )


class Container(Protocol):
    """A started image."""

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Result:
        """What a command in the container printed, and its exit status."""

    def stop(self, name: str, timeout_s: float) -> int:
        """Sends the signal; the server's exit status. Raises EngineError if it does not end."""


class Engine(Protocol):
    """Builds the image and starts it."""

    @property
    def name(self) -> str:
        """The engine and the base image, for the user."""

    def build(self, context: Path) -> None:
        """Builds the image, showing how it goes."""

    def config(self) -> ImageConfig:
        """What the image says of itself."""

    def started(self) -> AbstractContextManager[Container]:
        """A container with a read-only root and no network, for an unknown user; then gone."""


def run(command: Sequence[str], stdin: str = "") -> Result:
    """A finished command and what it printed."""
    return subprocess.run(command, check=False, capture_output=True, text=True, input=stdin)


def output(command: Sequence[str]) -> str:
    """What a command printed. Raises EngineError where it failed."""
    result = run(command)
    if result.returncode:
        reason = " ".join(result.stderr.split())[-400:]
        raise EngineError(f"{' '.join(command[:4])} failed: {reason}")
    return result.stdout.strip()


def show(command: Sequence[str]) -> None:
    """Runs a long command whose output the user sees. Raises EngineError where it failed."""
    if status := subprocess.run(command, check=False).returncode:
        raise EngineError(f"{' '.join(command[:4])} ended with status {status}")
