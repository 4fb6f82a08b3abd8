"""A table's figures over seeds, beside the paper's."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from eulerlora.coefficients import PROJECTIONS
from eulerlora.config import CheckpointConfig
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe
from training.reporting.tables import METRICS, OOD_METRICS
from training.reproduction.runs import TableRun, ood_place
from training.reproduction.table import Figure, Table, TableRow

PERCENT = {"accuracy", "macro_f1", "macro_auroc", "auroc", "auprc", "fpr_at_95_tpr"}
"""Metrics that tables print in percent."""
NAMES = METRICS | OOD_METRICS


def markdown_table(table: Table, runs: Sequence[TableRun]) -> str:
    """A Markdown table: parameters trained, mean and standard deviation (ddof 1) over the finished
    runs of each row, the paper's figures below where it has them; then what the runs were and how
    they differ from the paper's.
    """
    finished = [run for run in runs if run.status == "finished"]
    titles = [_title(table, each) for each in table.metrics]
    lines = [
        f"## {table.title}",
        "",
        _line(["method", "trained", "mode", "from", *titles]),
        "|---|---:|---|---|" + "---:|" * len(titles),
    ]
    for row in table.rows:
        lines += _rows(table, row, [run for run in finished if run.recipe.variant == row.variant])
    notes = [*_circumstances(finished), *_differences(table, runs, finished)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def _rows(table: Table, row: TableRow, runs: Sequence[TableRun]) -> list[str]:
    mode = row.mode if row.mode == "det" else f"stoch, {row.samples} samples"
    found = [_figures(table, row, run) for run in runs]
    cells = [_over_seeds(metric, [each[metric] for each in found]) for metric in table.metrics]
    seeds = f"{len(runs)} seed{'s' * (len(runs) != 1)}"
    lines = [_line([row.method, _trained(runs), mode, seeds, *cells])]
    if row.paper:
        published = [_published(metric, row.paper.get(metric)) for metric in table.metrics]
        lines.append(_line(["", "", "", "paper", *published]))
    return lines


def _title(table: Table, metric: str) -> str:
    """A column's title; of a table of both kinds, those of out-of-distribution sets name it."""
    name = NAMES[metric]
    if metric in OOD_METRICS and not set(table.metrics) <= OOD_METRICS.keys():
        name = f"{name}, {table.ood}"
    return f"{name} (%)" if metric in PERCENT else name


def _figures(table: Table, row: TableRow, run: TableRun) -> Mapping[str, Any]:
    """A run's metrics in the row's mode, those of the table's out-of-distribution set with them."""
    asked = next(
        each
        for each in run.report()["modes"]
        if each["mode"] == row.mode and (row.mode == "det" or each["samples"] == row.samples)
    )
    found: Mapping[str, Any] = asked["metrics"]
    if table.ood is not None:
        place = ood_place(table.ood, run.recipe)
        assert place is not None  # or the run would have been refused
        found = {**found, **list(asked["ood"].values())[place]}
    return {name: each and each["value"] for name, each in found.items()}


def _trained(runs: Sequence[TableRun]) -> str:
    """How many parameters a method trains."""
    if not runs:
        return "-"
    return f"{trained_parameters(runs[0].config()) / 1e6:.2f} M"


def trained_parameters(config: CheckpointConfig) -> int:
    """The elements of A and B of every adapted projection, and of each adapter's head."""
    adapters, shape = config.adapters.settings, config.backbone.settings
    directions = adapters.rank * 2 * shape.width * len(PROJECTIONS) * shape.layers
    heads = len(config.classes) * (shape.width + 1)
    return adapters.adapters * (directions + heads)


def _over_seeds(metric: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    scaled = [100 * value if metric in PERCENT else value for value in known]
    digits = 2 if metric in PERCENT else 3
    spread = f" ± {stdev(scaled):.{digits}f}" if len(scaled) > 1 else ""
    return f"{mean(scaled):.{digits}f}{spread}"


def _published(metric: str, figure: Figure | None) -> str:
    if figure is None:
        return "-"
    digits = 2 if metric in PERCENT else 3
    return f"{figure[0]:.{digits}f} ± {figure[1]:.{digits}f}"


def _circumstances(finished: Sequence[TableRun]) -> list[str]:
    """What the finished runs were measured on and made with."""
    if not finished:
        return ["No run is finished yet."]
    facts = [run.config().provenance for run in finished]
    return [
        f"measured on {_listed(str(run.report()['data']) for run in finished)}",
        f"seeds {_listed(str(run.recipe.seed) for run in finished)}; mean ± standard deviation "
        "over seeds (ddof 1)",
        f"on {_listed(str(each['hardware']) for each in facts)}, "
        f"torch {_listed(str(each['versions']['torch']) for each in facts)}, "
        f"{_listed(str(each['date']) for each in facts)}, "
        f"commit {_listed(_commit(each['commit']) for each in facts)}",
    ]


def _commit(name: str | None) -> str:
    """Seven digits of the commit, marked where the code was changed since."""
    if name is None:
        return "unknown"
    return name[:7] + "-dirty" * name.endswith("-dirty")


def _differences(table: Table, runs: Sequence[TableRun], finished: Sequence[TableRun]) -> list[str]:
    """How the runs differ from the paper's; without a paper's table, from the recipe."""
    if not finished:
        return []
    changed = {
        each for run in finished for each in run.recipe.overrides if not each.startswith("seed=")
    }
    if table.paper_data is None:
        return [f"differs from the recipe: set {_listed(sorted(changed))}"] if changed else []
    notes = []
    seeds = {run.recipe.seed for run in finished}
    if seeds != set(table.seeds) or len(finished) < len(runs):
        paper = ", ".join(map(str, table.seeds))
        notes.append(f"differs from the paper: {len(finished)} runs; its seeds are {paper}")
    backbones = _listed(_backbone(run) for run in finished)
    wanted = read_recipe(table.recipe_path, AdapterRecipe).backbone.weights
    if any(run.config().backbone.published != wanted for run in finished):
        notes.append(f"differs from the paper: the backbone is {backbones}")
    data = sorted({str(run.config().provenance["data"]) for run in finished})
    if data != [table.paper_data]:
        notes.append(f"differs from the paper: the data is {_listed(data)}")
    others = [each for each in sorted(changed) if not each.startswith(("backbone.", "data."))]
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


def _listed(values: Any) -> str:
    """Each different value once, in order."""
    return ", ".join(dict.fromkeys(values))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
