"""Results on disk: a line of JSON each, or one JSON document of a GPU's run."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.correctness import Check
from benchmarks.result import Result
from eulerlora.settings import Settings

FOLDER = Path(__file__).parent / "results"


class GpuRun(Settings):
    """A whole run of `benchmarks.gpu`. seconds: that it took, checks included."""

    seconds: float
    checks: list[Check]
    results: list[Result]


def append(path: Path, result: Result) -> None:
    """One more line, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(result.model_dump_json() + "\n")


def read(path: Path) -> list[Result]:
    """The results in a `.jsonl` file of lines, or in the `.json` of a GPU's run.

    Raises pydantic's ValidationError for anything else.
    """
    text = path.read_text()
    if path.suffix == ".json":
        return GpuRun.model_validate_json(text).results
    return [Result.model_validate_json(line) for line in text.splitlines()]


def newest(results: Sequence[Result]) -> list[Result]:
    """The latest result of each name and machine, in the order in which they first came."""
    latest: dict[tuple[str, str], Result] = {}
    for result in results:
        key = (result.machine.name, result.name)
        if key not in latest or result.date >= latest[key].date:
            latest[key] = result
    return list(latest.values())
