"""Checks the wheels that are installed in an environment: `make test-dist`.

It runs with the environment's Python, for example `build/core/bin/python -I deploy/wheel_test.py
core`, and uses only packages that the wheels install. The exit status is 0 if all checks pass;
otherwise it is 1, and a line says what was expected and what was found.
"""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

PROGRAM = Path(sys.executable).with_name("eulerlora")
START_S = 300
READY = re.compile(r" on (http://\S+)$", re.MULTILINE)
"""In the line of a service that is ready."""


class WheelError(Exception):
    """A check failed. The message is one line for the user."""


def main(part: str) -> None:
    """Runs the checks of one environment."""
    try:
        with TemporaryDirectory() as folder:
            picture = Path(folder, "picture.jpg")
            Image.radial_gradient("L").convert("RGB").save(picture)
            PARTS[part](picture)
    except WheelError as error:
        sys.exit(f"wheel-test: {part}: {error}")
    print(f"{part}: all checks passed", flush=True)


def expect(condition: bool, expected: str, actual: object) -> None:
    """Raises WheelError unless `condition` is true."""
    if not condition:
        raise WheelError(f"expected {expected}; got {actual!r}")


def check_client(_: Path) -> None:
    expect_absent("torch", "fastapi", "eulerlora", "eulerlora_clinic")
    from eulerlora_client import TriageClient  # noqa: PLC0415 - not in every environment

    expect(TriageClient.__module__.startswith("eulerlora_client"), "the client", TriageClient)
    expect("eulerlora-clinic" in refusal("policy", "show"), "the distribution to install", "none")


def check_core(picture: Path) -> None:
    expect_absent(
        "httpx", "tabulate", "tenacity", "tqdm", "fastapi", "eulerlora_client", "eulerlora_clinic"
    )
    print(output("predict", "default", str(picture)), end="")
    expect("eulerlora[serve]" in refusal("serve"), "the extra to install", "none")


def check_service(picture: Path) -> None:
    expect_absent("httpx", "tabulate", "tenacity", "tqdm", "eulerlora_client", "eulerlora_clinic")
    output("serve", "--help")
    expect("eulerlora-clinic" in refusal("triage", str(picture)), "what to install", "none")
    with running_service(picture.parent) as url:
        status, prediction = answer(f"{url}/predict?mode=stoch&samples=4", picture.read_bytes())
        expect(status == 200 and prediction["samples"] == 4, "a prediction", (status, prediction))
        for path, content in (("/triage", picture.read_bytes()), ("/", None)):
            status, problem = answer(url + path, content)
            expect((status, problem["code"]) == (404, "not_found"), f"404 of {path}", problem)


def check_clinic(_: Path) -> None:
    output("policy", "show")
    print(output("demo"), end="")


def check_fit(_: Path) -> None:
    expect_absent("fastapi")
    output("site", "fit", "--help")


def check_lab(_: Path) -> None:
    output("reproduce", "--help")


def expect_absent(*modules: str) -> None:
    """Raises WheelError for a module that the wheels must not require."""
    present = [module for module in modules if find_spec(module) is not None]
    expect(not present, f"none of {', '.join(modules)}", present)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PROGRAM, *arguments], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


def output(*arguments: str) -> str:
    """The output of a command of `eulerlora`. Raises WheelError if it fails."""
    result = run(*arguments)
    expect(result.returncode == 0, f"eulerlora {arguments[0]} to succeed", result.stderr[-400:])
    return result.stdout


def refusal(*arguments: str) -> str:
    """The line of a command that is not installed. Raises WheelError if it is."""
    result = run(*arguments)
    lines = result.stderr.splitlines()
    expect(result.returncode == 1 and len(lines) == 1, "one line of error", result)
    return lines[0]


@contextmanager
def running_service(folder: Path) -> Iterator[str]:
    """Yields the address of a service; its log is in `folder`."""
    log = folder / "log"
    with (
        log.open("w") as file,
        subprocess.Popen([PROGRAM, "serve", "--port", "0", "--log-format", "text"], stderr=file)
        as service,
    ):  # fmt: skip
        try:
            yield ready_address(service, log)
        finally:
            service.terminate()


def ready_address(service: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and service.poll() is None:
        if found := READY.search(log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise WheelError(f"expected a ready service; got {log.read_text()[-400:]!r}")


def answer(url: str, content: bytes | None) -> tuple[int, Any]:
    """Status and JSON body of a request: a GET, or a POST of a JPEG file."""
    request = urllib.request.Request(url, content, {"Content-Type": "image/jpeg"})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


PARTS: Mapping[str, Callable[[Path], None]] = {
    "client": check_client,
    "core": check_core,
    "service": check_service,
    "clinic": check_clinic,
    "fit": check_fit,
    "lab": check_lab,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
