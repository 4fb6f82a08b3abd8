"""What is in the image that should not be there. Runs in the container, as root, on stdin.

Standard library alone; prints one finding a line and ends with status 1 if there are any.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

VIRTUAL = {"/proc", "/sys", "/dev", "/tmp"}
APPLICATION = Path("/opt/eulerlora")
UNNEEDED = {"pip", "triton", "pytest", "tests", "benchmarks"}

COMPILER = re.compile(
    r"^([\w-]*-)?(gcc|g\+\+|cc|c\+\+|cpp|clang|clang\+\+|tcc|ld|as|make|cmake|ninja|rustc|cargo|go"
    r"|nvcc|ptxas|protoc)(-?[\d.]+)?$"
)
LIBRARY_TO_LINK = re.compile(r"\.(a|bc)$")
SECRETS = {".env", ".netrc", ".pypirc", "id_rsa", "id_ed25519"}
OURS = ("eulerlora", "training", "service")


def findings(root: Path) -> Iterator[str]:
    """One line for everything under `root` that has no place in an image that only serves."""
    for folder, folders, names in os.walk(root):
        inside = Path("/", Path(folder).relative_to(root))
        folders[:] = [each for each in folders if str(inside / each) not in VIRTUAL]
        yield from _folder_findings(inside)
        for name in names:
            if stat.S_ISREG((there := Path(folder, name)).lstat().st_mode):
                yield from _file_findings(inside / name, there)


def _folder_findings(inside: Path) -> Iterator[str]:
    site_packages = inside.parent.name == "site-packages" and inside.is_relative_to(APPLICATION)
    if inside.name == "pip" and inside.parent.name in {"cache", ".cache"}:
        yield f"pip's cache: {inside}"
    if inside.name == ".git":
        yield f"a repository: {inside}"
    if site_packages and inside.name in UNNEEDED:
        yield f"not needed for serving: {inside}"
    if inside.name == "tests" and inside.parent.name in OURS:
        yield f"our own tests: {inside}"
    if inside.name == "include" and inside.is_relative_to(APPLICATION / "lib"):
        yield f"of use only to a compiler: {inside}"


def _file_findings(inside: Path, there: Path) -> Iterator[str]:
    mode = there.lstat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        yield f"setuid or setgid: {inside}"
    if mode & stat.S_IWOTH:
        yield f"writable by anyone: {inside}"
    if mode & 0o111 and inside.parent.name in {"bin", "sbin"} and COMPILER.match(inside.name):
        yield f"a build tool: {inside}"
    if inside.is_relative_to(APPLICATION) and LIBRARY_TO_LINK.search(inside.name):
        yield f"of use only to a compiler: {inside}"
    if inside.name in SECRETS or (inside.name == "pip.conf" and "index" in there.read_text()):
        yield f"what the machine that built it knows: {inside}"


def root_can_write() -> Iterator[str]:
    """A line for each place outside /tmp where even root can make a file."""
    for folder in ("/", "/opt/eulerlora", "/var/lib/eulerlora", "/etc", "/var/tmp", "/run"):
        path = Path(folder, "written-by-the-image-test")
        try:
            path.touch()
        except OSError as error:
            if error.errno != errno.EROFS:
                yield f"{folder}: wanted a read-only file system, got {error.strerror}"
        else:
            path.unlink()
            yield f"{folder} can be written to"


if __name__ == "__main__":
    FOUND = [*findings(Path("/")), *root_can_write()]
    print(
        "\n".join(FOUND) or "nothing is in it that should not be; nothing but /tmp can be written"
    )
    sys.exit(bool(FOUND))
