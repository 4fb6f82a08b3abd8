"""Prints the files that execute on the path of an image and on that of a recipe.

    python -m tests.architecture.executed_files [--root DIR]

A file counts if one of its functions is called, in any process: for an image, while the service
answers one `POST /predict` (multipart, mode stoch), from the HTTP body to the JSON; for a recipe,
while `eulerlora train` runs, from the recipe file to the checkpoint.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
from PIL import Image

from tests.architecture.import_graph import PACKAGES, ROOT

START_S = 300
WARM_UP_REQUESTS = 2
RECORDER = """\
import mmap, os, sys, threading
ROOT = os.environ["TRACE_ROOT"]
PACKAGES = tuple(os.environ["TRACE_PACKAGES"].split(":"))
SWITCH = mmap.mmap(os.open(os.environ["TRACE_SWITCH"], os.O_RDONLY), 1, access=mmap.ACCESS_READ)
FILES = os.open(os.environ["TRACE_FILES"], os.O_WRONLY | os.O_APPEND)
FUNCTION = 1  # CO_OPTIMIZED: the code of a function, not of a module or a class
seen = set()

def record(frame, event, argument):
    code = frame.f_code
    name = code.co_filename
    if event == "call" and SWITCH[0] == 49 and code.co_flags & FUNCTION and name not in seen:
        seen.add(name)
        if name.startswith(PACKAGES):
            os.write(FILES, (name[len(ROOT):] + "\\n").encode())

threading.setprofile(record)
sys.setprofile(record)
"""
RECIPE = """\
name = "traced"
[data]
kind = "imagefolder"
[backbone]
weights = "{backbone}"
[adapters]
adapters = 2
rank = 4
min_rank = 2
[training]
epochs = 1
batch_size = 8
warmup_steps = 1
workers = 0
[evaluation]
samples = 2
"""


@dataclass(frozen=True)
class Recorder:
    """A folder with a `sitecustomize` that records the called files of `root`'s packages."""

    folder: Path
    root: Path

    @classmethod
    def create(cls, folder: Path, root: Path) -> "Recorder":
        """Returns a recorder that is switched off."""
        (folder / "sitecustomize.py").write_text(RECORDER)
        (folder / "files").touch()
        declare_entry_points(folder, root)
        recorder = cls(folder, root)
        recorder.switch(on=False)
        return recorder

    def switch(self, on: bool) -> None:
        """Starts or stops the recording in all processes."""
        descriptor = os.open(self.folder / "switch", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"1" if on else b"0")
        os.close(descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a recorded process."""
        return os.environ | {
            "PYTHONPATH": f"{self.folder}:{self.root}",
            "TRACE_ROOT": f"{self.root}/",
            "TRACE_PACKAGES": ":".join(f"{self.root}/{package}/" for package in PACKAGES),
            "TRACE_SWITCH": str(self.folder / "switch"),
            "TRACE_FILES": str(self.folder / "files"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def program(self) -> list[str]:
        """The command that starts the `eulerlora` program of the recorded checkout."""
        client = (self.root / "eulerlora_client").is_dir()
        return [sys.executable, "-m", "eulerlora_client" if client else "eulerlora"]

    def files(self) -> list[str]:
        """The recorded files, relative to the root."""
        return sorted({*(self.folder / "files").read_text().split()})


def declare_entry_points(folder: Path, root: Path) -> None:
    """Writes the metadata of a checkout's distributions, which need not be installed."""
    for file in (root / "pyproject.toml", root / "eulerlora_client" / "pyproject.toml"):
        if file.is_file():
            project = tomllib.loads(file.read_text())["project"]
            metadata = (
                folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
            )
            metadata.mkdir()
            (metadata / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
            )
            (metadata / "entry_points.txt").write_text(
                "".join(
                    f"[{group}]\n"
                    + "".join(f"{name} = {target}\n" for name, target in names.items())
                    for group, names in project["entry-points"].items()
                )
            )


def files_of_an_image(recorder: Recorder) -> list[str]:
    """Returns the files that execute while the service answers one request."""
    image = recorder.folder / "image.jpg"
    write_image(image, seed=0)
    with service(recorder) as url:
        for request in range(WARM_UP_REQUESTS + 1):
            recorder.switch(on=request == WARM_UP_REQUESTS)
            with image.open("rb") as file:
                response = httpx.post(
                    f"{url}/predict?mode=stoch", files={"file": file}, timeout=START_S
                )
            response.raise_for_status()
        recorder.switch(on=False)
    return recorder.files()


@contextmanager
def service(recorder: Recorder) -> Iterator[str]:
    """Yields the URL of a service with the embedded checkpoint."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    command = [*recorder.program(), "serve", "--port", str(port)]
    with subprocess.Popen(
        command, env=recorder.environment, cwd=recorder.folder, stderr=subprocess.DEVNULL
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(url, process)
            yield url
        finally:
            process.terminate()


def wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Waits until /readyz answers 200. Raises RuntimeError if the service ends before."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"expected /readyz to answer 200 within {START_S} s")


def files_of_a_recipe(recorder: Recorder) -> list[str]:
    """Returns the files that execute while a recipe is trained."""
    for part, count in (("train", 20), ("test", 4)):
        for name in ("first", "second"):
            (recorder.folder / "data" / part / name).mkdir(parents=True)
            for index in range(count):
                seed = sum(map(ord, part + name)) * 100 + index
                write_image(recorder.folder / "data" / part / name / f"{index}.png", seed)
    (backbone,) = recorder.root.glob("*/default/backbone.safetensors")
    recipe = recorder.folder / "recipe.toml"
    recipe.write_text(RECIPE.format(backbone=backbone))
    recorder.switch(on=True)
    subprocess.run(
        [*recorder.program(), "train", recipe, "--data", recorder.folder / "data",
         "--out", recorder.folder / "out"],
        env=recorder.environment, cwd=recorder.folder, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return recorder.files()


def write_image(path: Path, seed: int) -> None:
    """Writes an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (96, 128, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def main() -> None:
    """Prints the files of both paths."""
    parser = argparse.ArgumentParser(description="Print the files that execute on a path.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    root = parser.parse_args().root.resolve()
    for title, trace in (
        ("an image, from the HTTP body to the JSON", files_of_an_image),
        ("a recipe, from the file to the checkpoint", files_of_a_recipe),
    ):
        with TemporaryDirectory() as folder:
            files = trace(Recorder.create(Path(folder), root))
        print(f"files on the path of {title}: {len(files)}")
        print("".join(f"  {file}\n" for file in files), end="")


if __name__ == "__main__":
    main()
