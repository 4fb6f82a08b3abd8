"""Results of a table over seeds, with the published results."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from eulerlora.checkpoint.config import Provenance
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.reporting.tables import METRICS, OOD_METRICS
from training.reproduction.runs import TableRun, ood_index
from training.reproduction.table import PublishedResult, Table, TableRow
from training.results.costs import trained_parameters

PERCENT = {
    "accuracy", "macro_f1", "macro_auroc", "accuracy_mean_logits", "auroc", "auprc",
    "fpr_at_95_tpr",
}  # fmt: skip
"""Metrics in percent."""
METRIC_NAMES = METRICS | OOD_METRICS


def markdown_table(table: Table, runs: Sequence[TableRun]) -> str:
    """Returns a Markdown table of results, with notes on the runs.

    Each row has the number of trained parameters, and mean and standard deviation (ddof 1) over
    the finished runs; the published results follow in the next row, or are a row of their own. The
    notes state data, seeds, hardware and versions, the differences from the paper, and what the
    table says about single rows.
    """
    finished = [run for run in runs if run.status == "finished"]
    titles = [_column_title(table, metric) for metric in table.metrics]
    lines = [
        f"## {table.title}",
        "",
        line(["method", "trained", "mode", "from", *titles]),
        "|---|---:|---|---|" + "---:|" * len(titles),
    ]
    for row in table.rows:
        lines += _rows(table, row, [run for run in finished if run.recipe.variant == row.variant])
    notes = [*_conditions(finished), *_row_notes(table), *_differences(table, runs, finished)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def _rows(table: Table, row: TableRow, runs: Sequence[TableRun]) -> list[str]:
    published = [_published(metric, row.paper.get(metric)) for metric in table.metrics]
    origin = f"paper, from {row.source}" if row.source else "paper"
    if row.variant is None:
        return [line([row.method, "-", "-", origin, *published])]
    results = [row_results(table, row, run) for run in runs]
    cells = [over_seeds(metric, [result[metric] for result in results]) for metric in table.metrics]
    seeds = f"{len(runs)} seed{'s' * (len(runs) != 1)}"
    lines = [line([row.method, _parameters(runs), mode_title(row), seeds, *cells])]
    if row.paper:
        lines.append(line(["", "", "", origin, *published]))
    return lines


def mode_title(row: TableRow) -> str:
    """Returns the mode of a row with its samples."""
    return str(row.mode) if row.mode == "det" else f"stoch, {row.samples} samples"


def _row_notes(table: Table) -> list[str]:
    return [f"{row.method}: {row.note}" for row in table.rows if row.note]


def _column_title(table: Table, metric: str) -> str:
    """Returns the title of a column; OOD metrics beside others include the name of the set."""
    name = METRIC_NAMES[metric]
    if metric in OOD_METRICS and not set(table.metrics) <= OOD_METRICS.keys():
        name = f"{name}, {table.ood}"
    return f"{name} (%)" if metric in PERCENT else name


def row_results(table: Table, row: TableRow, run: TableRun) -> Mapping[str, Any]:
    """Returns a run's metrics in the row's mode, with the MSP's on the table's OOD set."""
    mode = mode_report(row, run)
    metrics: Mapping[str, Any] = mode["metrics"]
    if table.ood is not None:
        index = ood_index(table.ood, run.recipe)
        assert index is not None  # checked by runs_of
        metrics = {**metrics, **list(mode["ood"].values())[index]["scores"]["msp"]["metrics"]}
    return {name: estimate and estimate["value"] for name, estimate in metrics.items()}


def mode_report(row: TableRow, run: TableRun) -> Mapping[str, Any]:
    """Returns the part of a run's report on the row's mode."""
    return next(
        mode
        for mode in run.report()["modes"]
        if mode["mode"] == row.mode and (row.mode == "det" or mode["samples"] == row.samples)
    )


def _parameters(runs: Sequence[TableRun]) -> str:
    """Returns the number of trained parameters, in millions."""
    if not runs:
        return "-"
    run = runs[0]
    count = sum(trained_parameters(config, run.recipe) for config in run.configs())
    return f"{count / 1e6:.2f} M"


def over_seeds(metric: str, values: Sequence[float | None]) -> str:
    """Returns mean and standard deviation of a metric as text; a dash without values."""
    defined = [value for value in values if value is not None]
    if not defined:
        return "-"
    scaled = [100 * value if metric in PERCENT else value for value in defined]
    digits = 2 if metric in PERCENT else 3
    spread = f" ± {stdev(scaled):.{digits}f}" if len(scaled) > 1 else ""
    return f"{mean(scaled):.{digits}f}{spread}"


def _published(metric: str, result: PublishedResult | None) -> str:
    if result is None:
        return "-"
    digits = 2 if metric in PERCENT else 3
    return f"{result[0]:.{digits}f} ± {result[1]:.{digits}f}"


def _conditions(finished: Sequence[TableRun]) -> list[str]:
    """Returns notes on data, seeds, hardware and versions of the finished runs."""
    if not finished:
        return ["No run is finished yet."]
    facts = [run.config().provenance for run in finished]
    return [
        f"measured on {_listed(str(run.report()['data']) for run in finished)}",
        f"seeds {_listed(str(run.recipe.seed) for run in finished)}; mean ± standard deviation "
        "over seeds (ddof 1)",
        f"on {_listed(_hardware(run_facts) for run_facts in facts)}, "
        f"torch {_listed(str(run_facts['versions']['torch']) for run_facts in facts)}, "
        f"{_listed(str(run_facts['date']) for run_facts in facts)}, "
        f"commit {_listed(_commit(run_facts['commit']) for run_facts in facts)}",
    ]


def _hardware(facts: Provenance) -> str:
    precision = facts["training"].get("precision")  # none for a run without steps
    return str(facts["hardware"]) + (f" in {precision}" if precision else "")


def _commit(name: str | None) -> str:
    """Returns seven digits of the commit, with "-dirty" for uncommitted changes."""
    if name is None:
        return "unknown"
    return name[:7] + "-dirty" * name.endswith("-dirty")


def _differences(table: Table, runs: Sequence[TableRun], finished: Sequence[TableRun]) -> list[str]:
    """Returns the differences from the paper, or from the recipe if the paper has no table."""
    if not finished:
        return []
    changed = {
        override
        for run in finished
        for override in run.recipe.overrides
        if not override.startswith("seed=")
    }
    if table.paper_data is None:
        return [f"differs from the recipe: set {_listed(sorted(changed))}"] if changed else []
    notes = []
    seeds = {run.recipe.seed for run in finished}
    if seeds != set(table.seeds) or len(finished) < len(runs):
        paper = ", ".join(map(str, table.seeds))
        notes.append(f"differs from the paper: {len(finished)} runs; its seeds are {paper}")
    backbones = _listed(_backbone(run) for run in finished)
    published = read_recipe(table.recipe_path, AdapterRecipe).backbone.weights
    if any(run.config().backbone.published != published for run in finished):
        notes.append(f"differs from the paper: the backbone is {backbones}")
    data = sorted({str(run.config().provenance["data"]) for run in finished})
    if data != [table.paper_data]:
        notes.append(f"differs from the paper: the data is {_listed(data)}")
    others = [name for name in sorted(changed) if not name.startswith(("backbone.", "data."))]
    if others:
        notes.append(f"differs from the paper: set {_listed(others)}")
    return notes or ["backbone, data, seeds and settings are the paper's"]


def _backbone(run: TableRun) -> str:
    backbone = run.config().backbone
    if backbone.published is not None:
        return backbone.published
    shape = backbone.settings
    return (
        f"{shape.layers} blocks of width {shape.width} at {shape.image_size} pixels "
        f"(weights {backbone.sha256[:8]})"
    )


def _listed(values: Iterable[str]) -> str:
    """Returns the distinct values in order, as text."""
    return ", ".join(dict.fromkeys(values))


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
