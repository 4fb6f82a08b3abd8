"""The tables that follow a table of results: costs, metrics of the mean logits, and OOD sets."""

from collections.abc import Mapping, Sequence

from eulerlora.scores.ood_scores import ScoreName
from training.reporting.tables import MEAN_LOGITS_METRICS
from training.reproduction.runs import TableRun
from training.reproduction.table import Table, TableRow
from training.results.costs import answer_flops, rows_of_answer, training_cost
from training.results.metrics_table import PERCENT, line, mode_report, mode_title, over_seeds

OOD_SCORES: Mapping[ScoreName, str] = {"msp": "MSP", "feature_distance": "feature distance"}
COSTS_NOTE = (
    "trained rows: an image in one trajectory, forward and backward. Operations are those of the "
    "matrix products, a product and its addition are two; mean over seeds. The hours are those of "
    "the run on its hardware, beside whatever else it did."
)
LOGITS_NOTE = (
    "softmax of the mean logits instead of the mean probability, in methods with several answers. "
    "The code behind the results that the paper quotes from LoRA-Ensemble computes accuracy and "
    "ECE this way, and macro-F1, NLL and Brier score from the mean probability."
)


def further_tables(table: Table, runs: Sequence[TableRun]) -> str:
    """Returns the tables as Markdown; empty without finished runs."""
    finished = [run for run in runs if run.status == "finished"]
    if not finished:
        return ""
    parts = [cost_table(table, finished), mean_logits_table(table, finished)]
    if table.all_ood:
        parts.append(ood_table(table, finished))
    return "\n".join(part for part in parts if part)


def cost_table(table: Table, runs: Sequence[TableRun]) -> str:
    """Returns parameters, rows and operations of an answer, and the cost of training by row."""
    columns = ["trained", "rows per answer", "GFLOP per answer", "steps", "trained rows", "PFLOP",
               "hours"]  # fmt: skip
    lines = []
    for row, of_row in _rows(table, runs):
        costs = [training_cost(run.configs(), run.recipe) for run in of_row]
        configs, recipe = of_row[0].configs(), of_row[0].recipe
        assert row.mode is not None
        flops = answer_flops(configs, recipe, row.mode, row.samples)
        cells = [
            f"{costs[0].parameters / 1e6:.2f} M",
            f"{rows_of_answer(configs, row.mode, row.samples)}",
            f"{flops / 1e9:.2f}",
            f"{_mean([cost.steps for cost in costs]):,.0f}",
            f"{_mean([cost.rows for cost in costs]):,.0f}",
            f"{_mean([cost.flops for cost in costs]) / 1e15:.3f}",
            f"{_mean([cost.seconds for cost in costs]) / 3600:.2f}",
        ]
        lines.append(line([row.method, mode_title(row), *cells]))
    return _section("Cost", columns, lines, COSTS_NOTE)


def mean_logits_table(table: Table, runs: Sequence[TableRun]) -> str:
    """Returns the metrics of the mean logits of rows with several trajectories; may be empty.

    Reports of versions without these metrics have dashes.
    """
    lines = []
    for row, of_row in _rows(table, runs):
        reports = [mode_report(row, run) for run in of_row]
        if reports[0]["trajectories"] == 1:
            continue
        cells = []
        for metric in MEAN_LOGITS_METRICS:
            estimates = [report["metrics"].get(metric) for report in reports]
            cells.append(over_seeds(metric, [e and e["value"] for e in estimates]))
        lines.append(line([row.method, mode_title(row), *cells]))
    columns = [
        f"{title} (%)" if metric in PERCENT else title
        for metric, title in MEAN_LOGITS_METRICS.items()
    ]
    return _section("Mean logits", columns, lines, LOGITS_NOTE) if lines else ""


def ood_table(table: Table, runs: Sequence[TableRun]) -> str:
    """Returns the AUROC of MSP and feature distance for every out-of-distribution set."""
    sets = runs[0].report()["ood_sets"]
    columns = [
        f"{name} ({facts['group']}), {title}"
        for name, facts in sets.items()
        for title in OOD_SCORES.values()
    ]
    lines = []
    for row, of_row in _rows(table, runs):
        reports = [mode_report(row, run)["ood"] for run in of_row]
        cells = []
        for name in sets:
            for score in OOD_SCORES:
                scores = [report[name]["scores"].get(score) for report in reports]
                values = [s and s["metrics"]["auroc"]["value"] for s in scores]
                cells.append(over_seeds("auroc", values))
        lines.append(line([row.method, mode_title(row), *cells]))
    note = "in distribution is positive; the feature distance of an ensemble is the mean of its "
    note += "members', each with its own statistics"
    return _section("Out of distribution: AUROC (%)", columns, lines, note)


def _rows(table: Table, runs: Sequence[TableRun]) -> list[tuple[TableRow, list[TableRun]]]:
    """Returns the rows with finished runs, and these runs."""
    pairs = [
        (row, [run for run in runs if run.recipe.variant == row.variant]) for row in table.rows
    ]
    return [(row, of_row) for row, of_row in pairs if of_row]


def _section(title: str, columns: Sequence[str], lines: Sequence[str], note: str) -> str:
    names = line(["method", "mode", *columns])
    head = [f"### {title}", "", names, "|---|---|" + "---:|" * len(columns)]
    return "\n".join([*head, *lines, "", f"- {note}"]) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
