"""The stored results of `eulerlora reproduce` as tables.

    python -m eulerlora_lab.stored_tables [FOLDER]

Writes two CSV files beside each TABLE.json in FOLDER, by default lab/results: TABLE.csv has the
mean and standard deviation over seeds of every metric of a row, TABLE-differences.csv the tested
differences with 95% intervals, p values and Holm's correction.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from eulerlora_contract.output_files import write_text

_RESULTS = Path(__file__).parents[1] / "results"
_TEST = ("metric", "arm", "minus", "difference", "low", "high", "p", "adjusted_p", "detectable")


def _row_table(stored: Mapping[str, Any]) -> str:
    """CSV with a line for each variant and options; a standard deviation has the divisor n - 1."""
    rows = [
        {"variant": row["variant"], **row["options"]}
        | {
            f"{metric} {name}": round(function(values), 5)
            for metric, values in row["metrics_by_seed"].items()
            if None not in values
            for name, function in (("mean", mean), ("sd", stdev))
        }
        for row in stored["rows"]
    ]
    columns = dict.fromkeys(column for row in rows for column in row)
    return _csv(list(columns), rows)


def _difference_table(stored: Mapping[str, Any]) -> str:
    """CSV with a line for each tested difference, the primary one first, if there is one."""
    primary = [{**stored["primary"], "endpoint": "primary"}] if stored["primary"] else []
    secondary = [{**test, "endpoint": "secondary"} for test in stored["secondary"]]
    return _csv(["endpoint", *_TEST], [*primary, *secondary])


def _stored_tables(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields path and content of the tables of all results in a folder."""
    for path in sorted(folder.glob("*.json")):
        stored = json.loads(path.read_text())
        if "rows" in stored:
            yield path.with_suffix(".csv"), _row_table(stored)
            yield path.with_name(f"{path.stem}-differences.csv"), _difference_table(stored)


def _csv(columns: list[str], rows: list[dict[str, Any]]) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=_RESULTS)
    for table, content in _stored_tables(parser.parse_args().folder):
        write_text(table, content)


if __name__ == "__main__":
    main()
