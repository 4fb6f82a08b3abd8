"""The engine without a service, in a process of its own, which measures when it is told to.

As a program (`python -m benchmarks.service.references.engine FOLDER MODE ROWS ANSWERS`) it answers each
line on its standard input by the seconds of one run: `decoded` takes questions that were decoded
beforehand, `files` decodes each batch within the measured time.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from benchmarks.service.references.library import Asked, answers, decoded, embedded_model
from benchmarks.service.server.process import ROOT
from eulerlora.settings import Mode

Source = Literal["decoded", "files"]
Run = Callable[[Source], float]


@contextmanager
def engine_alone(folder: Path, mode: Mode, rows: int, count: int) -> Iterator[Run]:
    """A function that runs the engine once over `count` answers, in batches of at most `rows`
    rows, on the image files of a folder; it returns the seconds.
    """
    arguments = [str(folder), mode, str(rows), str(count)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.service.references.engine", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asking, answering = process.stdin, process.stdout

    def run(source: Source) -> float:
        print(source, file=asking, flush=True)
        return float(answering.readline())

    try:
        run("files")  # warm
        yield run
    finally:
        asking.close()
        process.wait()
        answering.close()


def _serve(folder: Path, mode: Mode, rows: int, count: int) -> None:
    model = embedded_model()
    files = [file.read_bytes() for file in sorted(folder.iterdir())]
    questions = [decoded(model, data, mode) for data in files]
    batch = max(1, rows // (model.network.settings.adapters * questions[0].draw.samples))
    for line in sys.stdin:
        started = time.perf_counter()
        asked: Iterator[Asked] = islice(cycle(questions), count)
        if line.strip() == "files":
            asked = (decoded(model, data, mode) for data in islice(cycle(files), count))
        while some := list(islice(asked, batch)):
            answers(model, some)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    place, asked_mode, most_rows, wanted = sys.argv[1:]
    _serve(Path(place), "det" if asked_mode == "det" else "stoch", int(most_rows), int(wanted))
