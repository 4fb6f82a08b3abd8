"""Lists what should not be in the image, or is missing. Runs in the container, as root, on stdin.

Uses only the standard library. Prints one finding per line; the exit status is 1 if there are any.
"""

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

VIRTUAL = {"/proc", "/sys", "/dev", "/tmp"}
APPLICATION = Path("/opt/eulerlora")
UNNEEDED = {
    "pip", "triton", "pytest", "tests", "benchmarks", "deploy", "training", "accelerate",
    "matplotlib", "scipy", "sklearn", "tensorboard",
}  # fmt: skip

COMPILER = re.compile(
    r"^([\w-]*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|tcc|ld|as|make|cmake|ninja|rustc|cargo|go"
    r"|nvcc|ptxas|protoc)(-?[\d.]+)?$"
)
LIBRARY_TO_LINK = re.compile(r"\.(a|bc)$")
SECRETS = {".env", ".netrc", ".pypirc", "id_rsa", "id_ed25519"}
FIRST_PARTY = ("eulerlora", "eulerlora_client", "service")


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


if __name__ == "__main__":
    FINDINGS = [
        *findings(Path("/")),
        *root_can_write(),
        *component_list(APPLICATION / "sbom.cdx.json"),
    ]
    print("\n".join(FINDINGS) or "no unneeded files; only /tmp is writable")
    sys.exit(bool(FINDINGS))
