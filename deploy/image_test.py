"""Builds the container image and checks it: `make image-test`, or `python -m deploy.image_test`.

The image runs its default command with a read-only root, without network, under a user id that no
file of the image mentions. The test sends requests, searches the file system and stops the server.
It requires a Docker engine, or root with buildah. The exit status is 0 if all checks pass;
otherwise it is 1, and a line says what was expected and what was found.

Two parts run inside the container, which gets this file on standard input: `python - requests` as
the user of the server, and `python - contents` as root. They use only the image's Python and
Pillow.
"""

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

Output = subprocess.CompletedProcess[str]

TAG = "eulerlora"
UNKNOWN_USER = 12345
ROOT_USER = 0
START_S, STOP_S = 600, 60
ADDRESS = "http://127.0.0.1:8000"
BUILDAH = ("buildah", "--storage-driver", "overlay")
IMAGE = f"localhost/{TAG}"
BASE = "localhost/python-base"
BASE_RELEASE = "bookworm"
BASE_PACKAGES = "ca-certificates,python3,python3-venv,python3-pip,python-is-python3"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
TOOLS = ("buildah", "unshare", "nsenter", "setpriv", "ip", "mount", "umount", "pivot_root")
ENTER_TIMEOUT_S = 60

PREDICTION_KEYS = {
    "request_id", "model", "revision", "mode", "samples", "trajectories", "seed", "label",
    "probabilities", "entropy", "expected_entropy", "mutual_information", "msp", "ood",
    "ood_threshold", "ood_scores", "unfamiliar", "warnings",
}  # fmt: skip
VIRTUAL = {"/proc", "/sys", "/dev", "/tmp"}
APPLICATION = Path("/opt/eulerlora")
UNNEEDED = {
    "pip", "triton", "pytest", "tests", "eulerlora_lab", "deploy", "training", "accelerate",
    "matplotlib", "scipy", "sklearn", "tensorboard",
}  # fmt: skip

COMPILER = re.compile(
    r"^([\w-]*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|tcc|ld|as|make|cmake|ninja|rustc|cargo|go"
    r"|nvcc|ptxas|protoc)(-?[\d.]+)?$"
)
LIBRARY_TO_LINK = re.compile(r"\.(a|bc)$")
SECRETS = {".env", ".netrc", ".pypirc", "id_rsa", "id_ed25519"}
FIRST_PARTY = (
    "eulerlora",
    "eulerlora_client",
    "eulerlora_clinic",
    "eulerlora_contract",
    "service",
)
ENTER_IMAGE = r"""
set -eu
root=$1
folder=$2
shift 2

ip link set lo up
mount --bind "$root" "$root"
cd "$root"
mount -t proc -o nosuid,nodev,noexec proc proc
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs tmp
mount -t tmpfs -o nosuid,mode=755 tmpfs dev
for device in null zero full random urandom; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/shm
mount -t tmpfs -o nosuid,nodev,mode=1777,size=64m tmpfs dev/shm
ln -s /proc/self/fd dev/fd
mount -o remount,bind,ro "$root"
pivot_root . .
umount -l .
cd "$folder"
exec "$@"
"""
"""`sh -c ENTER_IMAGE sh ROOT FOLDER COMMAND ...` makes a mounted image the root of its mount
namespace and executes a command as process 1 of the container. The root is read-only except for
/tmp; the only network is loopback."""


class ImageTestError(Exception):
    """A check failed, or an engine is missing or failed. The message is one line for the user."""


def expect(condition: bool, expected: str, actual: object) -> None:
    """Raises ImageTestError unless `condition` is true."""
    if not condition:
        raise ImageTestError(f"expected {expected}; got {actual!r}")


def main(part: str = "") -> None:
    """Builds the image, starts it, and runs all checks; or runs one of `PARTS` inside it."""
    try:
        if part:
            PARTS[part]()
            return
        engine = find_engine()
        print(f"engine: {engine.name}", flush=True)
        engine.build(Path(__file__).parents[1])
        config = engine.config()
        check_config(config)
        with engine.started() as container:
            check_running(container, config)
            check_training_is_absent(container)
            check_stop(container, config.stop_signal)
        print("all checks of the image passed")
    except ImageTestError as error:
        sys.exit(f"image-test: {error}")


def find_engine() -> "Docker | Buildah":
    """Docker if it is available, otherwise buildah. Raises ImageTestError for neither."""
    if shutil.which("docker") and not run(["docker", "info"]).returncode:
        return Docker()
    if missing := missing_for_buildah():
        raise ImageTestError(
            "expected a Docker engine that answers `docker info`, or root with buildah and "
            f"util-linux; got no Docker engine and {missing}"
        )
    return Buildah()


def check_config(config: "ImageConfig") -> None:
    """Raises ImageTestError unless the image runs as an ordinary user and has a health check."""
    user = config.user.split(":")[0]
    expect(user.isdecimal(), "a numeric user", config.user)
    expect(user != str(ROOT_USER), "a user other than root", config.user)
    expect(config.stop_signal == "SIGTERM", "stop signal SIGTERM", config.stop_signal)
    expect("/readyz" in " ".join(config.health_check), "a health check", config.health_check)


def check_running(container: "DockerContainer | NamespaceContainer", config: "ImageConfig") -> None:
    """Raises ImageTestError unless the server becomes healthy, answers, and has the right files."""
    early = container.run(config.health_check, UNKNOWN_USER)
    expect(early.returncode == 1, "an unhealthy server while the model loads", early)
    for part, user in (("requests", UNKNOWN_USER), ("contents", ROOT_USER)):
        result = container.run(("python", "-I", "-", part), user, Path(__file__).read_text())
        print(result.stdout, end="", flush=True)
        if result.returncode:
            raise ImageTestError(f"{part}: {result.stderr.strip() or 'see the lines above'}")
    ready = container.run(config.health_check, UNKNOWN_USER)
    expect(ready.returncode == 0, "a healthy server", ready)


def check_training_is_absent(container: "DockerContainer | NamespaceContainer") -> None:
    """Raises ImageTestError unless `eulerlora train` names the extra to install, in one line."""
    result = container.run(("eulerlora", "train", "imagefolder"), UNKNOWN_USER)
    expect(result.returncode == 1, "exit status 1 of eulerlora train", result)
    expect("eulerlora[train]" in result.stderr, "the name of the extra", result)
    expect(len(result.stderr.splitlines()) == 1, "one line of error", result)


def check_stop(container: "DockerContainer | NamespaceContainer", name: str) -> None:
    """Raises ImageTestError unless the signal ends the server in time, with exit status 0."""
    started = time.monotonic()
    status = container.stop(name, STOP_S)
    expect(status == 0, f"exit status 0 after {name}", status)
    print(f"ended with status 0, {time.monotonic() - started:.1f} s after {name}")


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
        """The settings in the `Config` object of Docker's image format."""
        return cls(
            command=(*(config.get("Entrypoint") or ()), *config["Cmd"]),
            environment=tuple(config["Env"]),
            user=config["User"],
            folder=config["WorkingDir"],
            stop_signal=config.get("StopSignal", "SIGTERM"),
            health_check=tuple((config.get("Healthcheck") or {}).get("Test", ())[1:]),
        )


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

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Output:
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
            raise ImageTestError(
                f"expected the server to end within {timeout_s:.0f} s of {name}"
            ) from error
        return int(ended.stdout)


def missing_for_buildah() -> str:
    """What this machine lacks for the engine; an empty string if it lacks nothing."""
    missing = next((program for program in TOOLS if not shutil.which(program)), None)
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
                 "sh", "-c", ENTER_IMAGE, "sh", root, config.folder,
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

    def run(self, command: Sequence[str], user: int, stdin: str = "") -> Output:
        enter = ["nsenter", "--target", str(self.first_process), "--mount", "--pid", "--net",
                 "--ipc", "--uts"]  # fmt: skip
        return run([*enter, *_as_user(self.config, user), *command], stdin)

    def stop(self, name: str, timeout_s: float) -> int:
        os.kill(self.first_process, signal.Signals[name])
        try:
            return self.outside.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ImageTestError(
                f"expected the server to end within {timeout_s:.0f} s of {name}"
            ) from error


def _image_id() -> str:
    """The id of the current image; an empty string if there is none."""
    return run([*BUILDAH, "images", "--quiet", "--no-trunc", IMAGE]).stdout.strip()


def _as_user(config: ImageConfig, user: int) -> list[str]:
    """The start of a command that runs as `user` in the environment of the image.

    Users other than root have no capabilities. Root retains them in order to read every folder.
    """
    drop = [] if user == ROOT_USER else ["--inh-caps=-all", "--bounding-set=-all"]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs",
            *drop, "env", "-i", *config.environment]  # fmt: skip


def _first_process(outside: "subprocess.Popen[bytes]") -> int:
    """The process id of the container's process 1 once it runs the image's command."""
    deadline = time.monotonic() + ENTER_TIMEOUT_S
    while time.monotonic() < deadline and outside.poll() is None:
        for child in _children(outside):
            command = Path(f"/proc/{child}/cmdline").read_bytes()  # empty between two programs
            if command and not command.startswith((b"sh\0", b"unshare\0")):
                return child
        time.sleep(0.05)
    raise ImageTestError("the image could not become the root of a mount namespace")


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


def run(command: Sequence[str], stdin: str = "") -> Output:
    """Runs a command; returns its output and exit status."""
    return subprocess.run(command, check=False, capture_output=True, text=True, input=stdin)


def output(command: Sequence[str]) -> str:
    """The output of a command. Raises ImageTestError if the command fails."""
    result = run(command)
    if result.returncode:
        reason = " ".join(result.stderr.split())[-400:]
        raise ImageTestError(f"{' '.join(command[:4])} failed: {reason}")
    return result.stdout.strip()


def show(command: Sequence[str]) -> None:
    """Runs a command and shows its output. Raises ImageTestError if the command fails."""
    if status := subprocess.run(command, check=False).returncode:
        raise ImageTestError(f"{' '.join(command[:4])} ended with status {status}")


def wait_until_ready() -> float:
    """The seconds until /readyz first answered 200."""
    started = time.monotonic()
    while (elapsed_s := time.monotonic() - started) < START_S:
        try:
            with urllib.request.urlopen(ADDRESS + "/readyz", timeout=5):
                return elapsed_s
        except OSError:
            time.sleep(0.2)
    raise ImageTestError(f"expected /readyz to answer 200 within {START_S} s")


def jpeg() -> bytes:
    """A JPEG of a gradient, 320 x 240."""
    from PIL import Image  # noqa: PLC0415 - the machine of the build need not have it

    gradient = Image.linear_gradient("L").resize((320, 240))
    file = BytesIO()
    Image.merge("RGB", (gradient, gradient.rotate(90), gradient.rotate(180))).save(file, "JPEG")
    return file.getvalue()


def predict(query: str) -> dict[str, Any]:
    """The prediction for the JPEG after a check of its keys and probabilities."""
    request = urllib.request.Request(
        f"{ADDRESS}/predict?{query}", jpeg(), {"Content-Type": "image/jpeg"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            prediction: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        expect(False, f"200 from /predict?{query}", (error.code, error.read()[:500]))
    others = {"sampler", "views", "precision", "runtime"}  # where not the default
    keys = prediction.keys() - others
    expect(keys == PREDICTION_KEYS, f"the keys {sorted(PREDICTION_KEYS)}", sorted(keys))
    probabilities = prediction["probabilities"]
    total = sum(probabilities.values())
    expect(abs(total - 1) < 1e-3, "probabilities that sum to 1", probabilities)
    top = max(probabilities, key=probabilities.get)
    expect(prediction["label"] == top, "the most probable label", prediction)
    expect(prediction["mutual_information"] >= -1e-6, "mutual information >= 0", prediction)
    return prediction


def listens_on_all_addresses() -> bool:
    """True if port 8000 is open on all addresses, so that it can be published."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    listening = [line.split()[1] for table in tables for line in table if line.split()[3] == "0A"]
    sockets = (entry.split(":") for entry in listening)
    return any(set(address) == {"0"} and int(port, 16) == 8000 for address, port in sockets)


def check_requests() -> None:
    """Sends requests to the server, inside its container. Raises ImageTestError."""
    expect(os.getuid() == UNKNOWN_USER, f"user id {UNKNOWN_USER}", os.getuid())
    expect(bool(os.statvfs("/").f_flag & os.ST_RDONLY), "a read-only root", "a writable one")
    print(f"ready after {wait_until_ready():.1f} s, as user {UNKNOWN_USER}, with a read-only root")
    expect(listens_on_all_addresses(), "port 8000 on all addresses", "a different socket")
    det = predict("mode=det")
    stoch = predict("mode=stoch&samples=4&seed=1")
    expect((det["mode"], stoch["mode"]) == ("det", "stoch"), "modes det and stoch", (det, stoch))
    expect(stoch["samples"] == 4, "4 samples", stoch["samples"])
    repeated = predict("mode=stoch&samples=4&seed=1") | {"request_id": stoch["request_id"]}
    expect(repeated == stoch, "the same prediction for the same seed", repeated)
    print(f"predicted in modes det and stoch: {det['label']}, {stoch['label']} of {det['model']}")
    status = Path("/proc/1/status").read_text().splitlines()
    peak = next(line.split(":")[1].strip() for line in status if line.startswith("VmHWM"))
    print(f"peak memory of the server: {peak}")


def findings(root: Path) -> Iterator[str]:
    """Yields one line for everything under `root` that serving does not need."""
    for folder, folders, names in os.walk(root):
        path_in_image = Path("/", Path(folder).relative_to(root))
        folders[:] = [name for name in folders if str(path_in_image / name) not in VIRTUAL]
        yield from _folder_findings(path_in_image)
        for name in names:
            if stat.S_ISREG((file := Path(folder, name)).lstat().st_mode):
                yield from _file_findings(path_in_image / name, file)


def _folder_findings(path: Path) -> Iterator[str]:
    in_site_packages = path.parent.name == "site-packages" and path.is_relative_to(APPLICATION)
    if path.name == "pip" and path.parent.name in {"cache", ".cache"}:
        yield f"cache of pip: {path}"
    if path.name == ".git":
        yield f"repository: {path}"
    if in_site_packages and path.name in UNNEEDED:
        yield f"not needed for serving: {path}"
    if path.name == "tests" and path.parent.name in FIRST_PARTY:
        yield f"tests of the project: {path}"
    if path.name == "include" and path.is_relative_to(APPLICATION / "lib"):
        yield f"only for a compiler: {path}"


def _file_findings(path: Path, file: Path) -> Iterator[str]:
    mode = file.lstat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        yield f"setuid or setgid: {path}"
    if mode & stat.S_IWOTH:
        yield f"writable by all users: {path}"
    if mode & 0o111 and path.parent.name in {"bin", "sbin"} and COMPILER.match(path.name):
        yield f"build tool: {path}"
    if path.is_relative_to(APPLICATION) and LIBRARY_TO_LINK.search(path.name):
        yield f"only for a compiler: {path}"
    if path.name in SECRETS or (path.name == "pip.conf" and "index" in file.read_text()):
        yield f"private to the machine of the build: {path}"


def root_can_write() -> Iterator[str]:
    """Yields a line for each folder outside of /tmp where root can create a file."""
    for folder in ("/", "/opt/eulerlora", "/var/lib/eulerlora", "/etc", "/var/tmp", "/run"):
        path = Path(folder, "written-by-the-image-test")
        try:
            path.touch()
        except OSError as error:
            if error.errno != errno.EROFS:
                yield f"{folder}: expected a read-only file system, got {error.strerror}"
        else:
            path.unlink()
            yield f"{folder} is writable"


def component_list(file: Path) -> Iterator[str]:
    """Yields a line if a file is not a CycloneDX list with the libraries of the service."""
    try:
        listed = json.loads(file.read_text())
        names = {component["name"] for component in listed["components"]}
        is_complete = listed["bomFormat"] == "CycloneDX" and {"torch", "fastapi"} <= names
    except (OSError, ValueError, KeyError):
        is_complete = False
    if not is_complete:
        yield f"{file}: expected a CycloneDX list with torch and fastapi"


def check_contents() -> None:
    """Searches the file system, inside the container as root. Raises ImageTestError."""
    found = [
        *findings(Path("/")),
        *root_can_write(),
        *component_list(APPLICATION / "sbom.cdx.json"),
    ]
    print("\n".join(found) or "no unneeded files; only /tmp is writable")
    expect(not found, "no finding", f"{len(found)}, see the lines above")


PARTS: Mapping[str, Callable[[], None]] = {
    "requests": check_requests,
    "contents": check_contents,
}

if __name__ == "__main__":
    main(*sys.argv[1:])
