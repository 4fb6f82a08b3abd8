"""Reference: the inference engine without a service, in a separate process.

As a program, `python -m benchmarks.service.references.engine FOLDER MODE ROWS COUNT` prints the
seconds of a run for each line on standard input: `decoded` uses images decoded in advance, `files`
decodes each batch within the measured time.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from benchmarks.service.references.library import InferenceInput, decode, default_model, predict
from benchmarks.service.server.process import ROOT
from eulerlora_client.contract.sampling import Mode

Source = Literal["decoded", "files"]
Run = Callable[[Source], float]


@contextmanager
def engine_process(folder: Path, mode: Mode, rows: int, count: int) -> Iterator[Run]:
    """Yields a function that runs the engine on `count` images and returns the seconds.

    folder: image files, used in a cycle. rows: maximum number of rows of a batch.
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
    commands, results = process.stdin, process.stdout

    def run(source: Source) -> float:
        print(source, file=commands, flush=True)
        return float(results.readline())

    try:
        run("files")  # warm-up
        yield run
    finally:
        commands.close()
        process.wait()
        results.close()


def _measure(folder: Path, mode: Mode, rows: int, count: int) -> None:
    model = default_model()
    files = [file.read_bytes() for file in sorted(folder.iterdir())]
    decoded = [decode(model, data, mode) for data in files]
    batch_size = max(1, rows // (model.network.settings.adapters * decoded[0].draw.samples))
    for line in sys.stdin:
        started = time.perf_counter()
        inputs: Iterator[InferenceInput] = islice(cycle(decoded), count)
        if line.strip() == "files":
            inputs = (decode(model, data, mode) for data in islice(cycle(files), count))
        while batch := list(islice(inputs, batch_size)):
            predict(model, batch)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    folder_name, mode_name, max_rows, image_count = sys.argv[1:]
    chosen_mode: Mode = "det" if mode_name == "det" else "stoch"
    _measure(Path(folder_name), chosen_mode, int(max_rows), int(image_count))
