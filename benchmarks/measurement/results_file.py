"""Result files: JSON Lines, or a JSON document of a GPU run."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.measurement.reading import Reading
from benchmarks.measurement.result import Check, Result
from eulerlora_client.settings import Settings

Record = Result | Reading
RECORD: TypeAdapter[Record] = TypeAdapter(Record)
FOLDER = Path(__file__).parents[1] / "results"


class GpuRun(Settings):
    """A run of `benchmarks.gpu`. seconds: duration, checks included."""

    seconds: float
    checks: list[Check]
    results: list[Record]


def append(path: Path, record: Record) -> None:
    """Appends a line; creates the folder if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(record.model_dump_json() + "\n")


def read(path: Path) -> list[Record]:
    """Reads a `.jsonl` file, or the `.json` file of a GPU run.

    Raises pydantic.ValidationError for other content.
    """
    text = path.read_text()
    if path.suffix == ".json":
        return GpuRun.model_validate_json(text).results
    return [RECORD.validate_json(line) for line in text.splitlines()]


def newest(records: Sequence[Record]) -> list[Record]:
    """Returns the newest record of each name and machine, in order of first appearance."""
    latest: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.machine.name, record.name)
        if key not in latest or record.date >= latest[key].date:
            latest[key] = record
    return list(latest.values())
