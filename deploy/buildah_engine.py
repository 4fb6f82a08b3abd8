"""buildah and Linux namespaces as the engine of the image test, for machines without Docker."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.engines import (
    ROOT_USER,
    TAG,
    UNKNOWN_USER,
    EngineError,
    ImageConfig,
    Result,
    output,
    run,
    show,
)

BUILDAH = ("buildah", "--storage-driver", "overlay")
IMAGE = f"localhost/{TAG}"
BASE = "localhost/python-base"
BASE_RELEASE = "bookworm"
BASE_PACKAGES = "ca-certificates,python3,python3-venv,python3-pip,python-is-python3"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PROGRAMS = ("buildah", "unshare", "nsenter", "setpriv", "ip", "mount", "umount", "pivot_root")
ENTER_IMAGE = Path(__file__).with_name("enter_image.sh")
ENTER_TIMEOUT_S = 60


def missing_for_buildah() -> str:
    """Returns what this machine lacks for the engine; an empty string if it lacks nothing."""
    missing = next((program for program in PROGRAMS if not shutil.which(program)), None)
    if missing:
        return f"no {missing}"
    return "" if os.geteuid() == ROOT_USER else "no root"


@dataclass(frozen=True)
class Buildah:
    """Builds with buildah and starts the container with `unshare`.

    With chroot isolation `buildah run` cannot make the root read-only.
    """

    name: str = f"buildah, on {BASE} (Debian {BASE_RELEASE} by debootstrap)"

    def build(self, context: Path) -> None:
        if run([*BUILDAH, "inspect", "--type", "image", BASE]).returncode:
            _build_base()
        previous = _image_id()
        show(
            [*BUILDAH, "bud", "--isolation", "chroot", "--layers", "--format", "docker",
             "--build-arg", f"BASE={BASE}", "--tag", IMAGE, str(context)]
        )  # fmt: skip
        if previous not in ("", _image_id()):
            run([*BUILDAH, "rmi", previous])  # fails, rightly, if another image is based on it

    def config(self) -> ImageConfig:
        inspected = json.loads(output([*BUILDAH, "inspect", "--type", "image", IMAGE]))
        return ImageConfig.of_docker(inspected["Docker"]["config"])

    @contextmanager
    def started(self) -> Iterator["NamespaceContainer"]:
        config = self.config()
        identifier = output([*BUILDAH, "from", "--pull-never", IMAGE])
        try:
            root = output([*BUILDAH, "mount", identifier])
            with subprocess.Popen(
                ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork",
                 "sh", str(ENTER_IMAGE), root, config.folder,
                 *_as_user(config, UNKNOWN_USER), *config.command]
            ) as outside:  # fmt: skip
                try:
                    yield NamespaceContainer(outside, _first_process(outside), config)
                finally:
                    _end(outside)
        finally:
            output([*BUILDAH, "rm", identifier])


@dataclass(frozen=True)
class NamespaceContainer:
    """A server that is process 1 of its namespaces.

    outside: the `unshare` process, which ends with the server. first_process: the server's process
    id in the outer namespace.
    """

    outside: "subprocess.Popen[bytes]"
    first_process: int
    config: ImageConfig

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Result:
        enter = ["nsenter", "--target", str(self.first_process), "--mount", "--pid", "--net",
                 "--ipc", "--uts"]  # fmt: skip
        return run([*enter, *_as_user(self.config, user), *command], stdin)

    def stop(self, name: str, timeout_s: float) -> int:
        os.kill(self.first_process, signal.Signals[name])
        try:
            return self.outside.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EngineError(
                f"expected the server to end within {timeout_s:.0f} s of {name}"
            ) from error


def _image_id() -> str:
    """Returns the id of the current image; an empty string if there is none."""
    return run([*BUILDAH, "images", "--quiet", "--no-trunc", IMAGE]).stdout.strip()


def _as_user(config: ImageConfig, user: int) -> list[str]:
    """Returns the start of a command that runs as `user` in the environment of the image.

    Users other than root have no capabilities. Root retains them in order to read every folder.
    """
    drop = [] if user == ROOT_USER else ["--inh-caps=-all", "--bounding-set=-all"]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
            *drop, "env", "-i", *config.environment]  # fmt: skip


def _first_process(outside: "subprocess.Popen[bytes]") -> int:
    """Returns the process id of the container's process 1 once it runs the image's command."""
    deadline = time.monotonic() + ENTER_TIMEOUT_S
    while time.monotonic() < deadline and outside.poll() is None:
        for child in _children(outside):
            if not Path(f"/proc/{child}/cmdline").read_bytes().startswith((b"sh\0", b"unshare\0")):
                return child
        time.sleep(0.05)
    raise EngineError("the image could not become the root of a mount namespace")


def _children(process: "subprocess.Popen[bytes]") -> list[int]:
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(identifier) for identifier in listed.split()]


def _end(outside: "subprocess.Popen[bytes]") -> None:
    """Kills process 1; the kernel then kills the other processes of its namespace.

    `unshare --kill-child` does not suffice: a process that changes its user loses that setting.
    """
    if outside.poll() is None:
        for child in _children(outside):
            os.kill(child, signal.SIGKILL)


def _build_base() -> None:
    """Builds a Debian image with Python, for machines that cannot reach an image registry."""
    with tempfile.TemporaryDirectory() as folder:
        show(["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", BASE_RELEASE,
              folder])  # fmt: skip
        # A proxy in front of the package index may need the certificates of this machine.
        shutil.copy(CERTIFICATES, folder + CERTIFICATES)
        Path(folder, "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
        identifier = output([*BUILDAH, "from", "scratch"])
        try:
            output([*BUILDAH, "add", identifier, folder, "/"])
            output([*BUILDAH, "commit", identifier, BASE])
        finally:
            output([*BUILDAH, "rm", identifier])
