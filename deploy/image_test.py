"""Builds the image and tries it: `make image-test`, or `python -m deploy.image_test`.

The image is started by its own command with a read-only root, no network, and a user id that no
file knows; then it is asked, searched and stopped. Needs a Docker engine, or root with buildah.
Exit status 0 when all is well, 1 with a line that says what was wanted and what came.
"""

import sys
import time
from pathlib import Path

from deploy.buildah_engine import Buildah, missing_for_buildah
from deploy.docker_engine import Docker, docker_answers
from deploy.engines import ROOT_USER, UNKNOWN_USER, Container, Engine, EngineError, ImageConfig

HERE = Path(__file__).parent
STOP_S = 30
PYTHON = ("python", "-I", "-")


def main() -> None:
    """Builds, starts, asks, searches, stops."""
    try:
        engine = find_engine()
        print(f"engine: {engine.name}", flush=True)
        engine.build(HERE.parent)
        config = engine.config()
        check_config(config)
        with engine.started() as container:
            check_running(container, config)
            check_stop(container, config.stop_signal)
        print("the image is as it should be")
    except EngineError as error:
        sys.exit(f"image-test: {error}")


def find_engine() -> Engine:
    """Docker where it answers, otherwise buildah. Raises EngineError for neither."""
    if docker_answers():
        return Docker()
    if missing := missing_for_buildah():
        raise EngineError(
            "wanted a Docker engine that answers `docker info`, or root with buildah and "
            f"util-linux; got no Docker engine and {missing}"
        )
    return Buildah()


def check_config(config: ImageConfig) -> None:
    """Raises EngineError unless a container of the image is safe to start as it is."""
    want(config.user.split(":")[0].isdecimal(), "a numeric user", config.user)
    want(config.user.split(":")[0] != str(ROOT_USER), "another user than root", config.user)
    want(config.stop_signal == "SIGTERM", "stop signal SIGTERM", config.stop_signal)
    want("/readyz" in " ".join(config.health_check), "a health check", config.health_check)


def check_running(container: Container, config: ImageConfig) -> None:
    """Raises EngineError unless it answers, is healthy only then, and holds what it should."""
    early = container.run(config.health_check, UNKNOWN_USER)
    want(early.returncode == 1, "an unhealthy server while the model loads", early)
    for program, user in (("image_questions.py", UNKNOWN_USER), ("image_contents.py", ROOT_USER)):
        result = container.run(PYTHON, user, (HERE / program).read_text())
        print(result.stdout, end="", flush=True)
        if result.returncode:
            raise EngineError(f"{program}: {result.stderr.strip() or 'see the lines above'}")
    ready = container.run(config.health_check, UNKNOWN_USER)
    want(ready.returncode == 0, "a healthy server", ready)


def check_stop(container: Container, name: str) -> None:
    """Raises EngineError unless the signal ends the server in time, with exit status 0."""
    started = time.monotonic()
    status = container.stop(name, STOP_S)
    want(status == 0, f"exit status 0 after {name}", status)
    print(f"ended with status 0, {time.monotonic() - started:.1f} s after {name}")


def want(true: bool, wanted: str, came: object) -> None:
    """Raises EngineError unless `true`."""
    if not true:
        raise EngineError(f"wanted {wanted}; got {came}")


if __name__ == "__main__":
    main()
