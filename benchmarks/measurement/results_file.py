"""Results on disk: a line of JSON each, or one JSON document of a GPU's run."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.inference.correctness import Check
from benchmarks.measurement.reading import Reading
from benchmarks.measurement.result import Result
from eulerlora.settings import Settings

Record = Result | Reading
RECORD: TypeAdapter[Record] = TypeAdapter(Record)
FOLDER = Path(__file__).parents[1] / "results"


class GpuRun(Settings):
    """A whole run of `benchmarks.gpu`. seconds: that it took, checks included."""

    seconds: float
    checks: list[Check]
    results: list[Result]


def append(path: Path, record: Record) -> None:
    """One more line, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(record.model_dump_json() + "\n")


def read(path: Path) -> list[Record]:
    """The results in a `.jsonl` file of lines, or in the `.json` of a GPU's run.

    Raises pydantic's ValidationError for anything else.
    """
    text = path.read_text()
    if path.suffix == ".json":
        return list(GpuRun.model_validate_json(text).results)
    return [RECORD.validate_json(line) for line in text.splitlines()]


def newest(records: Sequence[Record]) -> list[Record]:
    """The latest record of each name and machine, in the order in which they first came."""
    latest: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.machine.name, record.name)
        if key not in latest or record.date >= latest[key].date:
            latest[key] = record
    return list(latest.values())
