"""The table of prediction sets in a report."""

from training.evaluation.report_schema import ClassCoverage, SetCoverage
from training.metrics.intervals import Proportion
from training.reporting.tables import prediction_set_table


def sets(coverage: float, hits: int) -> SetCoverage:
    mel = ClassCoverage(Proportion(hits, 20, 20, hits / 20, 0.5, 0.95), mean_size=2.5)
    df = ClassCoverage(Proportion(14, 14, 14, 1.0, 0.768, 1.0), mean_size=3.0)
    return SetCoverage(coverage, ("df",), {"mel": mel, "df": df}, 2.75, 0.0, 0.1)


def test_a_row_has_coverage_and_size_of_a_class_for_every_stated_coverage() -> None:
    assert prediction_set_table([sets(0.9, 18), sets(0.95, 19)]).splitlines() == [
        "| class | lesions | covered, stated 0.9 | set size, 0.9 | covered, stated 0.95 "
        "| set size, 0.95 |",
        "|---|---:|---:|---:|---:|---:|",
        "| mel | 20 | 0.900 [0.500, 0.950] (18/20) | 2.50 | 0.950 [0.500, 0.950] (19/20) | 2.50 |",
        "| df | 14 | 1.000 [0.768, 1.000] (14/14) always | 3.00 "
        "| 1.000 [0.768, 1.000] (14/14) always | 3.00 |",
        "| all images |  |  | 2.75 |  | 2.75 |",
    ]
