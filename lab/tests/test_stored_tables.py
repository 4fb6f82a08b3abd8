"""The tables beside the stored results are those of the program."""

import csv
from io import StringIO

from eulerlora_lab.stored_tables import RESULTS, difference_table, row_table, stored_tables


def test_each_stored_table_is_that_of_its_results() -> None:
    tables = list(stored_tables(RESULTS))
    assert len(tables) == 2 * 7
    for path, content in tables:
        assert path.read_text() == content, path.name


def test_a_row_has_mean_and_deviation_over_seeds_and_a_test_its_endpoint() -> None:
    test = {"metric": "nll", "arm": "a", "minus": "b", "difference": -0.1, "by_seed": [0]}
    row = {"variant": "a", "mode": "det", "metrics_by_seed": {"nll": [1.0, 2.0], "x": [None, 1]}}
    stored = {"rows": [row], "primary": test, "secondary": [test]}
    expected = {"variant": "a", "mode": "det", "nll mean": "1.5", "nll sd": "0.70711"}
    assert list(csv.DictReader(StringIO(row_table(stored)))) == [expected]
    differences = list(csv.DictReader(StringIO(difference_table(stored))))
    assert [line["endpoint"] for line in differences] == ["primary", "secondary"]
    assert differences[0]["difference"] == "-0.1"
