"""The interface of a container engine that the image test uses."""

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
    """No engine is available, or an engine failed. The message is one line for the user."""


@dataclass(frozen=True)
class ImageConfig:
    """Start options of a container; `health_check` has no leading CMD."""

    command: tuple[str, ...]
    environment: tuple[str, ...]
    user: str
    folder: str
    stop_signal: str
    health_check: tuple[str, ...]

    @classmethod
    def of_docker(cls, config: dict[str, Any]) -> "ImageConfig":
        """Returns the settings in the `Config` object of Docker's image format."""
        return cls(
            command=(*(config.get("Entrypoint") or ()), *config["Cmd"]),
            environment=tuple(config["Env"]),
            user=config["User"],
            folder=config["WorkingDir"],
            stop_signal=config.get("StopSignal", "SIGTERM"),
            health_check=tuple((config.get("Healthcheck") or {}).get("Test", ())[1:]),
        )


class Container(Protocol):
    """A running container of the image."""

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Result:
        """Runs a command in the container; returns its output and exit status."""

    def stop(self, name: str, timeout_s: float) -> int:
        """Sends a signal; returns the exit status of the server.

        Raises EngineError if the server does not end within `timeout_s`.
        """


class Engine(Protocol):
    """Builds the image and starts containers of it."""

    @property
    def name(self) -> str:
        """The engine and the base image, for the user."""

    def build(self, context: Path) -> None:
        """Builds the image and shows the output of the build."""

    def config(self) -> ImageConfig:
        """Returns how the image is started."""

    def started(self) -> AbstractContextManager[Container]:
        """Starts a container with a read-only root, without network, under an unknown user id.

        Leaving the context removes the container.
        """


def run(command: Sequence[str], stdin: str = "") -> Result:
    """Runs a command; returns its output and exit status."""
    return subprocess.run(command, check=False, capture_output=True, text=True, input=stdin)


def output(command: Sequence[str]) -> str:
    """Returns the output of a command. Raises EngineError if the command fails."""
    result = run(command)
    if result.returncode:
        reason = " ".join(result.stderr.split())[-400:]
        raise EngineError(f"{' '.join(command[:4])} failed: {reason}")
    return result.stdout.strip()


def show(command: Sequence[str]) -> None:
    """Runs a command and shows its output. Raises EngineError if the command fails."""
    if status := subprocess.run(command, check=False).returncode:
        raise EngineError(f"{' '.join(command[:4])} ended with status {status}")
