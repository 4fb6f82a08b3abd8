"""The image test's engine without Docker: buildah builds, kernel namespaces run."""

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
ENTER_TIMEOUT_S = 30


def missing_for_buildah() -> str:
    """What this machine lacks for the engine; nothing if it can be used."""
    absent = next((each for each in PROGRAMS if not shutil.which(each)), None)
    if absent:
        return f"no {absent}"
    return "" if os.geteuid() == ROOT_USER else "no root"


@dataclass(frozen=True)
class Buildah:
    """buildah; its own `run` has no read-only root under chroot isolation, so we start it."""

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
            run([*BUILDAH, "rmi", previous])  # stays where something is made from it

    def config(self) -> ImageConfig:
        inspected = json.loads(output([*BUILDAH, "inspect", "--type", "image", IMAGE]))
        return ImageConfig.of_docker(inspected["Docker"]["config"])

    @contextmanager
    def started(self) -> Iterator["NamespaceContainer"]:
        config = self.config()
        identity = output([*BUILDAH, "from", "--pull-never", IMAGE])
        try:
            root = output([*BUILDAH, "mount", identity])
            with subprocess.Popen(
                ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork",
                 "sh", str(ENTER_IMAGE), root, config.folder,
                 *_changed(config, UNKNOWN_USER), *config.command]
            ) as holder:  # fmt: skip
                try:
                    yield NamespaceContainer(holder, _first_process(holder), config)
                finally:
                    _end(holder)
        finally:
            output([*BUILDAH, "rm", identity])


@dataclass(frozen=True)
class NamespaceContainer:
    """A server that is process 1 of its own namespaces; `holder` waits for it outside of them."""

    holder: "subprocess.Popen[bytes]"
    first_process: int
    config: ImageConfig

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Result:
        entering = ["nsenter", "--target", str(self.first_process), "--mount", "--pid", "--net",
                    "--ipc", "--uts"]  # fmt: skip
        return run([*entering, *_changed(self.config, user), *command], stdin)

    def stop(self, name: str, timeout_s: float) -> int:
        os.kill(self.first_process, signal.Signals[name])
        try:
            return self.holder.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"wanted an end within {timeout_s:.0f} s of {name}") from error


def _image_id() -> str:
    """The id of the image as it is now; nothing if there is none."""
    return run([*BUILDAH, "images", "--quiet", "--no-trunc", IMAGE]).stdout.strip()


def _changed(config: ImageConfig, user: int) -> list[str]:
    """The start of a command that runs as `user`, without privileges, in the image's environment.

    Root is left what it may do: it is the one that looks into every folder.
    """
    powerless = [] if user == ROOT_USER else ["--inh-caps=-all", "--bounding-set=-all"]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
            *powerless, "env", "-i", *config.environment]  # fmt: skip


def _first_process(holder: "subprocess.Popen[bytes]") -> int:
    """The process id, out here, of the container's process 1, once the image is its root."""
    give_up = time.monotonic() + ENTER_TIMEOUT_S
    while time.monotonic() < give_up and holder.poll() is None:
        for child in _children(holder):
            if not Path(f"/proc/{child}/cmdline").read_bytes().startswith((b"sh\0", b"unshare\0")):
                return child
        time.sleep(0.05)
    raise EngineError("the image could not be made the root of a mount namespace")


def _children(holder: "subprocess.Popen[bytes]") -> list[int]:
    listed = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
    return [int(each) for each in listed.split()]


def _end(holder: "subprocess.Popen[bytes]") -> None:
    """Ends process 1, and the kernel all others of its namespace with it.

    Not left to `unshare --kill-child`: a process that changes its user forgets that wish.
    """
    if holder.poll() is None:
        for child in _children(holder):
            os.kill(child, signal.SIGKILL)


def _build_base() -> None:
    """A Debian with Python, for machines that reach a Debian mirror and no image registry."""
    with tempfile.TemporaryDirectory() as folder:
        show(["debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", BASE_RELEASE,
              folder])  # fmt: skip
        # It trusts whom this machine trusts: between here and a package index may be a proxy.
        shutil.copy(CERTIFICATES, folder + CERTIFICATES)
        Path(folder, "etc/pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
        identity = output([*BUILDAH, "from", "scratch"])
        try:
            output([*BUILDAH, "add", identity, folder, "/"])
            output([*BUILDAH, "commit", identity, BASE])
        finally:
            output([*BUILDAH, "rm", identity])
