"""The Grafana dashboard, against the metrics that the service exports."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.grafana import PANEL_ROWS, dashboard
from service.telemetry.metrics import Metrics
from tests.service.observed import GAUGES

SELECTOR = re.compile(r"(eulerlora_\w+|process_\w+)\{([^}]*)\}")
LABEL = re.compile(r'(\w+)\s*=~?\s*"')
GROUPING = re.compile(r"sum by \(([^)]*)\) \((.*?)\}")
TARGET_LABELS = {"instance", "le"}
"""Labels that Prometheus adds to every series, and the bucket of a histogram."""


def queries() -> Iterator[str]:
    for row in PANEL_ROWS.values():
        for panel in row:
            yield from panel.lines.values()


@pytest.fixture(scope="module")
def labels_of() -> dict[str, set[str]]:
    """Labels by the name of a series, of every metric family of the documentation's table."""
    table = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    labels: dict[str, set[str]] = {}
    for line in table.read_text().splitlines():
        if row := re.match(r"\| `(\w+)` \| (\w+) \| ([^|]*) \|", line):
            endings = ("_bucket", "_sum", "_count") if row[2] == "histogram" else ("",)
            for ending in endings:
                labels[row[1] + ending] = set(re.findall(r"`(\w+)`", row[3])) | TARGET_LABELS
    metrics = Metrics(lambda: GAUGES)
    for family in metrics.registry.collect():  # those of the process
        for sample in family.samples:
            labels.setdefault(sample.name, set(sample.labels) | TARGET_LABELS)
    return labels


def test_the_file_is_that_of_the_program(deploy_folder: Path) -> None:
    assert json.loads((deploy_folder / "grafana-dashboard.json").read_text()) == dashboard()


def test_every_query_uses_series_and_labels_that_the_service_exports(labels_of) -> None:
    assert list(queries())
    for query in queries():
        series = SELECTOR.findall(query)
        assert series, query
        for name, selector in series:
            assert name in labels_of, name
            assert set(LABEL.findall(selector)) <= labels_of[name], query
        for grouping, grouped in GROUPING.findall(query):
            (name, _), *_ = SELECTOR.findall(grouped + "}")
            assert {label.strip() for label in grouping.split(",")} <= labels_of[name], query


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels: list[dict[str, Any]] = dashboard()["panels"]
    cells = [
        (column, line)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
