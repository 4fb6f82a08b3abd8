"""Builds the container image and checks it: `make image-test`, or `python -m deploy.image_test`.

The image runs its default command with a read-only root, without network, under a user id that no
file of the image mentions. Then the test sends requests, searches the file system and stops the
server. It requires a Docker engine, or root with buildah. The exit status is 0 if all checks pass;
otherwise it is 1, and a line says what was expected and what was found.
"""

import sys
import time
from pathlib import Path

from deploy.buildah_engine import Buildah, missing_for_buildah
from deploy.docker_engine import Docker, docker_answers
from deploy.engines import ROOT_USER, UNKNOWN_USER, Container, Engine, EngineError, ImageConfig

HERE = Path(__file__).parent
STOP_S = 60
PYTHON = ("python", "-I", "-")


def main() -> None:
    """Builds the image, starts it, and runs all checks."""
    try:
        engine = find_engine()
        print(f"engine: {engine.name}", flush=True)
        engine.build(HERE.parent)
        config = engine.config()
        check_config(config)
        with engine.started() as container:
            check_running(container, config)
            check_training_is_absent(container)
            check_stop(container, config.stop_signal)
        print("all checks of the image passed")
    except EngineError as error:
        sys.exit(f"image-test: {error}")


def find_engine() -> Engine:
    """Returns Docker if it is available, otherwise buildah. Raises EngineError for neither."""
    if docker_answers():
        return Docker()
    if missing := missing_for_buildah():
        raise EngineError(
            "expected a Docker engine that answers `docker info`, or root with buildah and "
            f"util-linux; got no Docker engine and {missing}"
        )
    return Buildah()


def check_config(config: ImageConfig) -> None:
    """Raises EngineError unless the image runs as an ordinary user and has a health check."""
    user = config.user.split(":")[0]
    expect(user.isdecimal(), "a numeric user", config.user)
    expect(user != str(ROOT_USER), "a user other than root", config.user)
    expect(config.stop_signal == "SIGTERM", "stop signal SIGTERM", config.stop_signal)
    expect("/readyz" in " ".join(config.health_check), "a health check", config.health_check)


def check_running(container: Container, config: ImageConfig) -> None:
    """Raises EngineError unless the server becomes healthy, answers, and has the right files."""
    early = container.run(config.health_check, UNKNOWN_USER)
    expect(early.returncode == 1, "an unhealthy server while the model loads", early)
    for program, user in (("image_requests.py", UNKNOWN_USER), ("image_contents.py", ROOT_USER)):
        result = container.run(PYTHON, user, (HERE / program).read_text())
        print(result.stdout, end="", flush=True)
        if result.returncode:
            raise EngineError(f"{program}: {result.stderr.strip() or 'see the lines above'}")
    ready = container.run(config.health_check, UNKNOWN_USER)
    expect(ready.returncode == 0, "a healthy server", ready)


def check_training_is_absent(container: Container) -> None:
    """Raises EngineError unless `eulerlora train` names the extra to install, in one line."""
    result = container.run(("eulerlora", "train", "imagefolder"), UNKNOWN_USER)
    expect(result.returncode == 1, "exit status 1 of eulerlora train", result)
    expect("eulerlora[train]" in result.stderr, "the name of the extra", result)
    expect(len(result.stderr.splitlines()) == 1, "one line of error", result)


def check_stop(container: Container, name: str) -> None:
    """Raises EngineError unless the signal ends the server in time, with exit status 0."""
    started = time.monotonic()
    status = container.stop(name, STOP_S)
    expect(status == 0, f"exit status 0 after {name}", status)
    print(f"ended with status 0, {time.monotonic() - started:.1f} s after {name}")


def expect(condition: bool, expected: str, actual: object) -> None:
    """Raises EngineError unless `condition` is true."""
    if not condition:
        raise EngineError(f"expected {expected}; got {actual}")


if __name__ == "__main__":
    main()
