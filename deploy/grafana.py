"""Prints the Grafana dashboard of the service.

    python -m deploy.grafana > deploy/grafana-dashboard.json

A panel has a title, a unit of Grafana and one query of Prometheus for each line, with its legend.
docs/reference/metrics.md describes the metrics; a test compares the queries with them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
INSTANCES = 'instance=~"$instance"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


@dataclass(frozen=True)
class Panel:
    """A panel; `lines` are queries by legend, `kind` is a type of Grafana's panels.

    text_mode: what a `stat` shows of each series.
    """

    title: str
    lines: Mapping[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    description: str = ""
    text_mode: str = "value_and_name"


def rate(metric: str, labels: str, window: str = "$__rate_interval") -> str:
    """Events per second by labels, which commas separate."""
    return f"sum by ({labels}) (rate(eulerlora_{metric}_total{{{INSTANCES}}}[{window}]))"


def quantiles(metric: str, *labels: str, where: str = "") -> Mapping[str, str]:
    """Median and 99th percentile of a histogram by labels."""
    selector = ", ".join(filter(None, [INSTANCES, where]))
    series = f"rate(eulerlora_{metric}_bucket{{{selector}}}[$__rate_interval])"
    legend = "".join(f" {{{{{label}}}}}" for label in labels)
    grouped = f"sum by ({', '.join(('le', *labels))}) ({series})"
    return {
        f"{name}{legend}": f"histogram_quantile({quantile}, {grouped})"
        for name, quantile in (("median", 0.5), ("p99", 0.99))
    }


def mean(metric: str, label: str) -> Mapping[str, str]:
    """The mean of a histogram by a label."""
    total, count = (
        f"sum by ({label}) (rate(eulerlora_{metric}_{part}{{{INSTANCES}}}[$__rate_interval]))"
        for part in ("sum", "count")
    )
    return {f"{{{{{label}}}}}": f"{total} / {count}"}


def share(part: str, whole: str) -> str:
    """Flagged images / images with a threshold, by model and mode, over an hour."""
    return " / ".join(rate(name, "model, mode", "1h") for name in (part, whole))


PANEL_ROWS: Mapping[str, Sequence[Panel]] = {
    "Service": (
        Panel(
            "Ready", {"{{instance}}": f"eulerlora_ready{{{INSTANCES}}}"}, kind="stat",
            description="1 while the service is ready.",
        ),
        Panel(
            "Models",
            {"{{model}} {{revision}} {{precision}}": (
                f'label_replace(eulerlora_model_info{{{INSTANCES}}}, "revision", "$1", '
                '"revision", "(sha256:.{12}).*")'
            )},
            kind="stat", text_mode="name",
            description="Model, revision and precision of every instance.",
        ),
        Panel(
            "Memory", {"{{instance}}": f"process_resident_memory_bytes{{{INSTANCES}}}"}, "bytes",
        ),
    ),
    "Requests": (
        Panel("Requests by route", {"{{route}}": rate("requests", "route")}, "reqps"),
        Panel(
            "Refusals by problem", {"{{reason}}": rate("refusals", "reason") + " > 0"}, "reqps",
            description="docs/reference/http.md lists the problem codes.",
        ),
        Panel(
            "Duration of predictions",
            quantiles("request_duration_seconds", "route", where='route=~"/predict.*|/triage.*"'),
            "s",
        ),
    ),
    "Engine": (
        Panel("Images and rows in the queue", {
            "images": f"sum (eulerlora_queue_questions{{{INSTANCES}}})",
            "rows": f"sum (eulerlora_queue_rows{{{INSTANCES}}})",
        }),
        Panel("Where the time of an image goes", {
            legend: query
            for stage in ("decode", "queue_wait", "model")
            for legend, query in (
                (f"{name} {stage}", line)
                for name, line in quantiles(f"{stage}_seconds").items()
            )
        }, "s"),
        Panel("Rows of a batch", quantiles("batch_rows", "model")),
    ),
    "Triage": (
        Panel("Dispositions", {"{{disposition}}": rate("dispositions", "disposition")}, "reqps"),
        Panel(
            "Decisions of people", {"{{kind}}": rate("decisions", "kind")}, "reqps",
            description="Accepted, overridden and withdrawn dispositions, from POST /decisions.",
        ),
        Panel(
            "Confirmed critical lesions by suggestion, 30 days",
            {"{{disposition}}": (
                "sum by (disposition) (increase(eulerlora_diagnoses_total{"
                f'{INSTANCES}, critical="true"}}[30d]))'
            )},
            kind="stat",
            description="A routine one is a miss; `eulerlora monitor` tests how many are too many.",
        ),
    ),
    "Model": (
        Panel(
            "Out of distribution, share over an hour",
            {"{{model}} {{mode}}": share("ood", "ood_checked")}, "percentunit",
        ),
        Panel(
            "Unfamiliar, share over an hour",
            {"{{model}} {{mode}}": share("unfamiliar", "unfamiliar_checked")}, "percentunit",
        ),
        Panel(
            "Evidence for a shift (log10)",
            {"{{model}} {{signal}}": f"eulerlora_shift_evidence{{{INSTANCES}}}"},
            description="clinic/docs/site.md, shift monitor.",
        ),
        Panel("Entropy of predictions", quantiles("entropy_nats", "model", "mode")),
        Panel("Mutual information", quantiles("mutual_information_nats", "model", "mode")),
        Panel("Samples of samples=auto, mean", mean("auto_samples", "model")),
    ),
    "Shadow": (
        Panel(
            "Answers of the shadow",
            {"{{model}} {{outcome}}": rate("shadow_answers", "model, outcome")}, "reqps",
            description="docs/how-to/serve.md, shadow.",
        ),
        Panel(
            "Agreement with the shadow, share over an hour",
            {"{{model}} {{field}}": (
                f'sum by (model, field) (rate(eulerlora_shadow_fields_total{{{INSTANCES}, '
                'result="same"}[1h])) / ' + rate("shadow_fields", "model, field", "1h")
            )},
            "percentunit",
        ),
        Panel(
            "Other dispositions of the shadow, 7 days",
            {"{{model}} {{result}}": (
                f"sum by (model, result) (increase(eulerlora_shadow_fields_total{{{INSTANCES}, "
                'field="disposition", result!="same"}[7d]))'
            )},
            kind="stat",
        ),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard in the JSON model of Grafana (schema version 39, Grafana 11)."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in PANEL_ROWS.items():
        header = {"h": 1, "w": _WIDTH * _COLUMNS, "x": 0, "y": top}
        panels.append({"type": "row", "title": title, "gridPos": header, "panels": []})
        for index, panel in enumerate(row):
            place = {
                "h": _HEIGHT,
                "w": _WIDTH,
                "x": index % _COLUMNS * _WIDTH,
                "y": top + 1 + index // _COLUMNS * _HEIGHT,
            }
            panels.append(_panel(panel) | {"gridPos": place})
        top += 1 + -(-len(row) // _COLUMNS) * _HEIGHT
    for number, of_dashboard in enumerate(panels, start=1):
        of_dashboard["id"] = number
    return {
        "title": "EulerLoRA",
        "uid": "eulerlora",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            {
                "name": "instance", "type": "query", "datasource": DATASOURCE, "multi": True,
                "query": "label_values(eulerlora_ready, instance)", "refresh": 2,
                "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
            },
        ]},
        "panels": panels,
    }  # fmt: skip


def _panel(panel: Panel) -> dict[str, Any]:
    model: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (legend, query) in enumerate(panel.lines.items())
        ],
    }
    if panel.description:
        model["description"] = panel.description
    if panel.kind == "stat":
        model["fieldConfig"]["defaults"]["decimals"] = 0  # a counted increase is extrapolated
        model["options"] = {
            "textMode": panel.text_mode,
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    return model


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
