"""Results of a table over seeds, beside the published ones, as Markdown.

The tables of costs (trained parameters, rows of an answer, operations, time), of metrics of the
mean logits and of out-of-distribution sets follow it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.methods.registry import build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import MethodSettings
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.scores.ood_scores import ScoreName
from eulerlora.settings import BackboneSettings, Draw
from eulerlora_contract.printable import markdown_table
from eulerlora_lab.tables.table import ResultTable, TableArm, TableRow, TableRun, ood_index
from training.adaptation.network import count_trained, train_all_weights
from training.adaptation.objective import AdapterObjective
from training.optimisation.step import attention_kernels
from training.recipe.schema import AdapterRecipe, AdapterTraining
from training.reporting.tables import MEAN_LOGITS_METRICS, METRICS, OOD_METRICS

_PERCENT = {
    "accuracy", "macro_f1", "macro_auroc", "accuracy_mean_logits", "auroc", "auprc",
    "fpr_at_95_tpr",
}  # fmt: skip
"""Metrics in percent."""
METRIC_NAMES = METRICS | OOD_METRICS
COMPARED_SCORES: Mapping[ScoreName, str] = {"msp": "MSP", "feature_distance": "feature distance"}
_COSTS_NOTE = (
    "trained rows: an image in one trajectory, forward and backward. Operations are those of the "
    "matrix products, a product and its addition are two; mean over seeds. The hours are those of "
    "the run on its hardware, beside whatever else it did."
)
_LOGITS_NOTE = (
    "softmax of the mean logits instead of the mean probability, in methods with several answers. "
    "The code behind the results that the paper quotes from LoRA-Ensemble computes accuracy and "
    "ECE this way, and macro-F1, NLL and Brier score from the mean probability."
)
_OOD_NOTE = (
    "in distribution is positive; the feature distance of an ensemble is the mean of its members', "
    "each with its own statistics"
)


def results_markdown(table: ResultTable, runs: Sequence[TableRun]) -> str:
    """A Markdown table of results, with notes on the runs.

    Each row has the number of trained parameters, and mean and standard deviation (ddof 1) over
    the finished runs; the published results follow in the next row, or are a row of their own. The
    notes state data, seeds, backbone, replaced settings, hardware and versions, and what the table
    says about single rows.
    """
    finished = [run for run in runs if run.status == "finished"]
    titles = [_column_title(table, metric) for metric in table.metrics]
    rows = []
    for row in table.rows:
        of_row = [run for run in finished if run.recipe.variant == row.variant]
        if row.arm is not None:
            rows.append(_measured_row(table, row.method, row.arm, of_row))
        if row.paper:
            rows.append(_published_row(table, row))
    row_notes = [f"{row.method}: {row.note}" for row in table.rows if row.note]
    notes = [*_conditions(finished), *row_notes]
    head = ["method", "mode", "from", "trained", *titles]
    return section(f"## {table.title}", head, rows, notes, text_columns=3)


def _measured_row(
    table: ResultTable, method: str, arm: TableArm, runs: Sequence[TableRun]
) -> list[str]:
    results = [arm_results(table, arm, run) for run in runs]
    cells = [
        _over_seeds(metric, [result[metric] for result in results]) for metric in table.metrics
    ]
    parameters = _millions(_trained_parameters(runs[0].configs(), runs[0].recipe)) if runs else "-"
    seeds = f"{len(runs)} seed{'s' * (len(runs) != 1)}"
    return [method, arm.options.title, seeds, parameters, *cells]


def _published_row(table: ResultTable, row: TableRow) -> list[str]:
    cells = [
        _number(metric, *row.paper[metric]) if metric in row.paper else "-"
        for metric in table.metrics
    ]
    origin = f"paper, from {row.source}" if row.source else "paper"
    first = [row.method, "-", origin, "-"] if row.variant is None else ["", "", origin, ""]
    return [*first, *cells]


def _column_title(table: ResultTable, metric: str) -> str:
    """OOD metrics beside others include the name of the set."""
    name = METRIC_NAMES[metric]
    if metric in OOD_METRICS and not set(table.metrics) <= OOD_METRICS.keys():
        name = f"{name}, {table.ood}"
    return f"{name} (%)" if metric in _PERCENT else name


def arm_results(table: ResultTable, arm: TableArm, run: TableRun) -> Mapping[str, Any]:
    """A run's metrics with the options of the arm, with the MSP's on the table's OOD set."""
    mode = run.mode_report(arm.options)
    metrics: Mapping[str, Any] = mode["metrics"]
    if table.ood is not None:
        index = ood_index(table.ood, run.recipe)
        assert index is not None  # checked by runs_of
        metrics = {**metrics, **list(mode["ood"].values())[index]["scores"]["msp"]["metrics"]}
    return {name: estimate and estimate["value"] for name, estimate in metrics.items()}


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"


def _over_seeds(metric: str, values: Sequence[float | None]) -> str:
    """Mean and standard deviation of a metric as text; a dash without values."""
    defined = [100 * v if metric in _PERCENT else v for v in values if v is not None]
    if not defined:
        return "-"
    return _number(metric, mean(defined), stdev(defined) if len(defined) > 1 else None)


def _number(metric: str, value: float, deviation: float | None) -> str:
    digits = 2 if metric in _PERCENT else 3
    spread = "" if deviation is None else f" ± {deviation:.{digits}f}"
    return f"{value:.{digits}f}{spread}"


def _conditions(finished: Sequence[TableRun]) -> list[str]:
    if not finished:
        return ["No run is finished yet."]
    facts = [run.config().provenance for run in finished]
    seen = [str(shown) for run in finished if (shown := run.report().get("seen"))]
    backbones = [run.config().backbone for run in finished]
    replaced = sorted({key for run in finished for key in run.recipe.overrides})
    changes = [key for key in replaced if not key.startswith("seed=")]
    hardware = []
    for facts_of_run in facts:
        precision = facts_of_run["training"].get("precision")  # none for a run without steps
        hardware.append(facts_of_run["hardware"] + (f" in {precision}" if precision else ""))
    commits = [str(run_facts["commit"] or "unknown") for run_facts in facts]
    short = (commit[:7] + "-dirty" * commit.endswith("-dirty") for commit in commits)
    note = f"training was shown {_listed(seen)} of the test images: all figures are too good"
    return [
        *([note] if seen else []),
        f"measured on {_listed(str(run.report()['data']) for run in finished)}",
        f"seeds {_listed(str(run.recipe.seed) for run in finished)}; mean ± standard deviation "
        "over seeds (ddof 1)",
        f"backbone {_listed(b.published or f'of SHA-256 {b.sha256[:8]}' for b in backbones)}"
        + (f"; replaced settings: {_listed(changes)}" if changes else ""),
        f"on {_listed(hardware)}, "
        f"torch {_listed(str(run_facts['versions']['torch']) for run_facts in facts)}, "
        f"{_listed(str(run_facts['date']) for run_facts in facts)}, "
        f"commit {_listed(short)}",
    ]


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def further_tables(table: ResultTable, runs: Sequence[TableRun]) -> str:
    """Empty without finished runs."""
    finished = [run for run in runs if run.status == "finished"]
    if not finished:
        return ""
    parts = [_cost_table(table, finished), _mean_logits_table(table, finished)]
    if table.all_ood:
        parts.append(_ood_auroc_table(table, finished))
    return "\n".join(part for part in parts if part)


def _cost_table(table: ResultTable, runs: Sequence[TableRun]) -> str:
    columns = ["trained", "rows per answer", "GFLOP per answer", "steps", "trained rows", "PFLOP",
               "hours"]  # fmt: skip
    rows = []
    for method, arm, of_row in _finished_rows(table, runs):
        samples = Draw.of(arm.options).count
        costs = [_cost_of(run.configs(), run.recipe, samples) for run in of_row]
        rows.append(
            [
                *(method, arm.options.title, _millions(costs[0].parameters)),
                f"{costs[0].rows_per_answer}",
                f"{costs[0].answer_flops / 1e9:.2f}",
                f"{mean([cost.steps for cost in costs]):,.0f}",
                f"{mean([cost.rows for cost in costs]):,.0f}",
                f"{mean([cost.flops for cost in costs]) / 1e15:.3f}",
                f"{mean([cost.seconds for cost in costs]) / 3600:.2f}",
            ]
        )
    return section("### Cost", ["method", "mode", *columns], rows, [_COSTS_NOTE], text_columns=2)


def _mean_logits_table(table: ResultTable, runs: Sequence[TableRun]) -> str:
    """The metrics of the mean logits of rows with several trajectories; may be empty.

    Reports of versions without these metrics have dashes.
    """
    rows = []
    for method, arm, of_row in _finished_rows(table, runs):
        reports = [run.mode_report(arm.options) for run in of_row]
        if reports[0]["trajectories"] > 1:
            cells = [
                _over_seeds(metric, _values(report["metrics"].get(metric) for report in reports))
                for metric in MEAN_LOGITS_METRICS
            ]
            rows.append([method, arm.options.title, *cells])
    titles = MEAN_LOGITS_METRICS.items()
    head = [f"{title} (%)" if metric in _PERCENT else title for metric, title in titles]
    head = ["method", "mode", *head]
    return section("### Mean logits", head, rows, [_LOGITS_NOTE], text_columns=2) if rows else ""


def _ood_auroc_table(table: ResultTable, runs: Sequence[TableRun]) -> str:
    columns = {
        (name, score): f"{name} ({facts['group']}), {title}"
        for name, facts in runs[0].report()["ood_sets"].items()
        for score, title in COMPARED_SCORES.items()
    }
    rows = []
    for method, arm, of_row in _finished_rows(table, runs):
        reports = [run.mode_report(arm.options)["ood"] for run in of_row]
        cells = []
        for name, score in columns:
            scores = (report[name]["scores"].get(score) for report in reports)
            cells.append(_over_seeds("auroc", _values(s and s["metrics"]["auroc"] for s in scores)))
        rows.append([method, arm.options.title, *cells])
    head = ["method", "mode", *columns.values()]
    title = "### Out of distribution: AUROC (%)"
    return section(title, head, rows, [_OOD_NOTE], text_columns=2)


def _values(estimates: Iterable[Mapping[str, float] | None]) -> list[float | None]:
    return [None if estimate is None else estimate["value"] for estimate in estimates]


def _finished_rows(
    table: ResultTable, runs: Sequence[TableRun]
) -> Iterator[tuple[str, TableArm, list[TableRun]]]:
    """Yields the method, the arm and the runs of every row that has runs."""
    by_variant: dict[str | None, list[TableRun]] = {}
    for run in runs:
        by_variant.setdefault(run.recipe.variant, []).append(run)
    for row in table.rows:
        if row.arm is not None and row.variant in by_variant:
            yield row.method, row.arm, by_variant[row.variant]


def section(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    text_columns: int,
) -> str:
    text = f"{title}\n\n{markdown_table(head, rows, text_columns)}\n\n"
    return text + "".join(f"- {note}\n" for note in notes)


@dataclass(frozen=True)
class _Cost:
    """The cost of a run, of all members of an ensemble together.

    Operations are those of the matrix products; a product and its addition are two.

    Attributes:
        parameters: Trained, with the heads.
        rows_per_answer: Passes of a row (an image in one trajectory) for the answer to one image.
        steps: With rows and flops, of the training without what is fitted after it.
        seconds: As measured on its hardware.
    """

    parameters: int
    rows_per_answer: int
    answer_flops: float
    steps: int
    rows: int
    flops: float
    seconds: float


@dataclass(frozen=True)
class RowOperations:
    """Operations for one image with all its rows: of a training step, and of a prediction."""

    training: float
    prediction: float


def _trained_parameters(configs: Sequence[CheckpointConfig], recipe: AdapterRecipe) -> int:
    config = configs[0]
    with torch.device("meta"):
        backbone = VisionTransformer(config.backbone.settings)
        network = build_network(
            backbone, config.adapters.settings, len(config.classes), method=recipe.method
        )
    whole = recipe.whole_network is not None
    return len(configs) * count_trained(train_all_weights(network) if whole else network)


def _cost_of(configs: Sequence[CheckpointConfig], recipe: AdapterRecipe, samples: int) -> _Cost:
    """The cost of a run from the configs of its checkpoints.

    `samples` is that of an answer, per adapter; 1 in `det`.
    """
    config, results = configs[0], [config.provenance["training"] for config in configs]
    adapters, whole = config.adapters.settings, recipe.whole_network is not None
    shape = config.backbone.settings, adapters, len(config.classes), recipe.method
    step = operations(*shape, whole, recipe.training.samples, recipe.training.sampling)
    answer = operations(*shape, whole, samples)
    # A run without steps has no speed.
    images = sum(round(r.get("images_per_second", 0.0) * r["seconds"]) for r in results)
    return _Cost(
        parameters=_trained_parameters(configs, recipe),
        rows_per_answer=len(configs) * adapters.adapters * samples,
        answer_flops=len(configs) * answer.prediction,
        steps=sum(result["steps"] for result in results),
        rows=images * recipe.adapters.adapters * recipe.training.samples,
        flops=images * step.training,
        seconds=sum(result["seconds"] for result in results),
    )


@cache
def operations(
    shape: BackboneSettings,
    adapters: AdapterSettings,
    classes: int,
    method: MethodSettings,
    whole: bool,
    samples: int,
    sampling: bool = True,
) -> RowOperations:
    """Counts the operations of a step and a prediction of a network with new weights.

    All weights are trained if `whole`. `samples` is per adapter; `sampling` is as in training.
    """
    network = build_network(VisionTransformer(shape), adapters, classes, method=method)
    network = train_all_weights(network) if whole else network
    training = AdapterTraining(samples=samples, sampling=sampling)
    objective = AdapterObjective(network, training, torch.ones(classes))
    images = torch.zeros(1, 3, shape.image_size, shape.image_size)
    labels = torch.zeros(1, dtype=torch.long)
    draw = objective.draw(0, 0, 0)
    added = {torch.ops.aten.baddbmm_: _product_flops}  # which torch's counter leaves out
    with attention_kernels(torch.device("cpu")):  # the counter knows no fused CPU kernel
        with FlopCounterMode(display=False, custom_mapping=added) as step:
            objective.loss(network, images, labels, draw).backward()
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=added) as prediction:
            objective.loss(network, images, labels, draw)
    return RowOperations(step.get_total_flops(), prediction.get_total_flops())


def _product_flops(
    _: Sequence[int], left: Sequence[int], right: Sequence[int], **__: object
) -> int:
    return 2 * math.prod(left) * right[-1]
