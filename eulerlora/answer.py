"""From the trajectories of images to their answers: uncertainty, scores, flags and sets.

`answer` computes them for n images; `response_fields` states one of them in a response body.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.scores.ood_scores import FeatureDistance, ScoredByName
from eulerlora.scores.prediction_sets import PredictionSets, prediction_sets
from eulerlora.scores.trajectories import Trajectories
from eulerlora.scores.uncertainty import Uncertainty, Variance
from eulerlora_contract import answers as contract
from eulerlora_contract.answers import PredictionWarning, WarningCode, shown_fields
from eulerlora_contract.checkpoints import Threshold, missing_threshold
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import AUTO, Options

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HTML_ROWS = 50


@dataclass(frozen=True)
class Predictions(Uncertainty):
    """The answer for n images; tensors are on the CPU, float64 unless stated otherwise.

    It is also a sequence of n dictionaries, with the keys of a response of `POST /predict`, in the
    order of the images. A notebook shows it as a table.

    Attributes:
        classes: Their names, in the order of the probabilities.
        ood: (n,) bool, True if the MSP is below the checkpoint's threshold; None without a
            threshold for these options.
        unfamiliar: (n,) bool, True if the feature distance is above its threshold; None without
            one.
        ood_scores: Values, thresholds and flags of all scores by name.
        samples: (n,) int64, samples per adapter of the answer.
        rows: (n,) int64, rows that were run; None unless samples="auto".
        views: (n,) int64, number of views of the image that the trajectories share between them.
        variance: Its parts between adapters, views and samples, and within trajectories.
        trajectories: (n, adapters * samples, classes) probabilities, adapter by adapter; in mode
            det (n, adapters * views, classes). If images have different numbers of samples, those
            with fewer are filled with NaN.
        trajectory_views: (n, trajectories) int64, the view of each (`eulerlora.nn.rows`); 0 is the
            image, and where trajectories are filled with NaN.
        labels: The class name with the highest mean probability, one per image.
        coverage: The coverage that was asked for; None for no prediction sets.
        prediction_sets: None without a coverage, or if the checkpoint is not calibrated for it.
        warnings: Reasons for missing results, and conversions of images, such as those of colours.
    """

    ood: Tensor | None
    unfamiliar: Tensor | None
    ood_scores: ScoredByName
    samples: Tensor
    rows: Tensor | None
    views: Tensor
    variance: Variance
    trajectories: Tensor
    trajectory_views: Tensor
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    coverage: float | None = None
    prediction_sets: PredictionSets | None = None
    warnings: tuple[PredictionWarning, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """The answer for one image, as values of JSON; -1 is the last one."""
        answer: dict[str, Any] = to_jsonable_python(response_fields(self, range(len(self))[index]))
        return answer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns by name, with a value for each image: those of `eulerlora predict --csv`.

        `p_CLASS` is the probability of a class. A missing value is None. Unlike the file, it has
        the figures of unfamiliar images.
        """
        columns: dict[str, list[Any]] = {}
        for row in self:
            for name, value in table_row(row).items():
                columns.setdefault(name, []).append(value)
        return columns

    def to_frame(self) -> Any:
        """`to_dict` as pandas' `DataFrame`, a row for each image; needs the extra `notebook`."""
        try:
            from pandas import DataFrame  # type: ignore[import-untyped] # noqa: PLC0415 - an extra
        except ImportError as error:
            raise SettingsError("to_frame: expected pandas, of the extra notebook") from error
        return DataFrame(self.to_dict())

    def plot(self, index: int = 0, axes: "Axes | None" = None, classes: int = 5) -> "Axes":
        """Draws the mean probabilities of an image as bars, and each trajectory as a point.

        Args:
            index: Of the image; -1 is the last one.
            axes: Of matplotlib; None for new ones, with `summary_line` as title.
            classes: Number of classes, the most probable ones.

        Raises:
            SettingsError: Without matplotlib, which the extra `notebook` installs.
        """
        try:
            from matplotlib import pyplot  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise SettingsError("plot: expected matplotlib, of the extra notebook") from error
        index = range(len(self))[index]
        if axes is None:
            _, axes = pyplot.subplots(figsize=(5, 2.2), layout="constrained")
            axes.set_title(summary_line(self[index]), loc="left", fontsize=9)
        means = self.probabilities[index]
        order = means.argsort()[-classes:]
        drawn = self.trajectories[index][:, order]
        drawn = drawn[~drawn.isnan().any(dim=1)]
        colour = "#b6bac4" if self.unfamiliar is not None and self.unfamiliar[index] else "#3f51b5"
        axes.barh(range(len(order)), means[order].numpy(), 0.62, color="#d0d7e5")
        offsets = np.linspace(-0.24, 0.24, len(drawn)) if len(drawn) > 1 else [0.0]
        for values, offset in zip(drawn.numpy(), offsets, strict=True):
            axes.scatter(values, np.arange(len(order)) + offset, 9, color=colour, zorder=2)
        axes.set_yticks(range(len(order)), [self.classes[label] for label in order.tolist()])
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        return axes

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}" for name in ("", "label", "MSP", "entropy", "flags"))
        rows = []
        for index in range(min(len(self), _HTML_ROWS)):
            row = self[index]
            shown = shown_fields(row)
            flags = [name for name in ("ood", "unfamiliar") if row.get(name)]
            figures = [f"{shown[name]:.3f}" if name in shown else "" for name in ("msp", "entropy")]
            cells = [str(index), shown.get("label", ""), *figures, ", ".join(flags)]
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells))
        more = len(self) - len(rows)
        note = f"<p>and {more} more" if more else ""
        return f"<table><tr>{head}{''.join(rows)}</table>{note}"


def summary_line(answer: Mapping[str, Any]) -> str:
    """An answer for people: label, MSP, entropy H in nats, flags and set.

    `answer` has values of JSON, as `Predictions.__getitem__`. An unfamiliar image has no figures.
    """
    shown = shown_fields(answer)
    if "label" not in shown:
        return "unfamiliar"
    flags = "  out of distribution" if answer["ood"] else ""
    included = shown.get("prediction_set")
    labels = f"  {{{', '.join(included['labels'])}}}" if included else ""
    return f"{shown['label']} {shown['msp']:.3f}, H {shown['entropy']:.3f}{flags}{labels}"


def table_row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as values of one row: scores by name, and `p_CLASS`, the probability of a class.

    `answer` has values of JSON, as `Predictions.__getitem__`, with or without the figures.
    """
    scores = {name: score and score["value"] for name, score in answer["ood_scores"].items()}
    del scores["msp"]  # a field of its own, if it is shown
    row = {"views": 1, "unfamiliar": None, **answer, **scores}
    if included := row.get("prediction_set"):
        row["prediction_set"] = included["labels"]
    probabilities = row.pop("probabilities", {})
    for name in ("ood_scores", "ood_threshold"):
        del row[name]
    return row | {f"p_{name}": value for name, value in probabilities.items()}


def answer(
    trajectories: Trajectories,
    config: CheckpointConfig,
    options: Options,
    distance: FeatureDistance | None,
    coverage: float | None = None,
) -> Predictions:
    """Uncertainty, scores, flags and sets of n images, predicted with these options.

    `distance` is None without feature statistics; `coverage` adds prediction sets. Raises
    NonFiniteError for NaN or infinite logits.
    """
    summary = trajectories.summary(distance, config.threshold(options))
    scores, samples = summary.scores, trajectories.samples
    warnings = list(_missing_thresholds(scores, options, config.thresholds))
    sets = None
    if coverage is not None:
        sets, of_sets = calibrated_sets(summary.probabilities, coverage, options, config)
        warnings += of_sets
    return Predictions(
        **{field.name: getattr(summary, field.name) for field in fields(Uncertainty)},
        ood=scores["msp"].flagged,
        unfamiliar=scores["feature_distance"].flagged if "feature_distance" in scores else None,
        ood_scores=scores,
        samples=torch.ones_like(samples) if options.mode == "det" else samples,
        rows=trajectories.views.shape[1] * samples if options.samples == AUTO else None,
        views=torch.full_like(samples, options.views),
        variance=summary.variance,
        trajectories=trajectories.flat_log_probabilities.exp(),
        trajectory_views=trajectories.views.flatten(1),
        labels=tuple(config.class_names[label] for label in summary.labels.tolist()),
        classes=config.class_names,
        coverage=coverage,
        prediction_sets=sets,
        warnings=tuple(warnings),
    )


def response_fields(predictions: Predictions, index: int) -> dict[str, Any]:
    """What the response body states about the answer for the image `index`.

    The keys are fields of `eulerlora_contract.answers.Prediction`. Those that the options did not
    ask for, or that the checkpoint does not have, are absent.
    """
    scores = {
        name: contract.OodScore(
            value=score.value[index].item(),
            threshold=score.threshold,
            flagged=None if score.flagged is None else bool(score.flagged[index]),
        )
        for name, score in predictions.ood_scores.items()
    }
    fields: dict[str, Any] = {
        "samples": int(predictions.samples[index]),
        "label": predictions.labels[index],
        "probabilities": dict(
            zip(predictions.classes, predictions.probabilities[index].tolist(), strict=True)
        ),
        "entropy": predictions.entropy[index].item(),
        "expected_entropy": predictions.expected_entropy[index].item(),
        "mutual_information": predictions.mutual_information[index].item(),
        "msp": predictions.msp[index].item(),
        "ood": scores["msp"].flagged,
        "ood_threshold": scores["msp"].threshold,
        "ood_scores": contract.OodScores(**scores),
    }
    if predictions.views[index] > 1:
        fields["views"] = int(predictions.views[index])
    if "feature_distance" in scores:
        fields["unfamiliar"] = scores["feature_distance"].flagged
    if predictions.rows is not None:
        fields["rows"] = int(predictions.rows[index])
    if predictions.coverage is not None:
        fields["prediction_set"] = None
    if (sets := predictions.prediction_sets) is not None:
        fields["prediction_set"] = contract.PredictionSet(
            labels=sets.labels[index],
            coverage=sets.coverage,
            unit=sets.unit,
            calibrated_on=sets.calibrated_on,
        )
    return fields


def _missing_thresholds(
    scores: ScoredByName, options: Options, thresholds: Sequence[Threshold]
) -> Iterator[PredictionWarning]:
    """The reason of every null flag; a missing threshold of the MSP explains all of them."""
    missing = [name for name, score in scores.items() if score.flagged is None]
    sampled = f" with samples={options.samples}" if options.mode == "stoch" else ""
    if "msp" in missing:
        message = missing_threshold(thresholds, options.mode, options.samples) or (
            f"the checkpoint has no OOD threshold for mode {options.mode} with this sampler and "
            f"views={options.views}"
        )
    elif missing:
        names = ", ".join(missing)
        message = f"the checkpoint has no threshold of {names} for mode {options.mode}{sampled}"
    else:
        return
    yield PredictionWarning(code=WarningCode.NO_OOD_THRESHOLD, message=message)


def calibrated_sets(
    probabilities: Tensor, coverage: float, options: Options, config: CheckpointConfig
) -> tuple[PredictionSets | None, list[PredictionWarning]]:
    """Prediction sets of n images, and why they are missing or hold only nearly."""
    calibration = config.prediction_set_calibration(options, coverage)
    if calibration is None:
        available: dict[Options, list[str]] = {}
        for entry in config.prediction_sets:
            available.setdefault(entry.options, []).append(f"{entry.coverage:g}")
        known = "; ".join(f"{' and '.join(of)} for {fitted}" for fitted, of in available.items())
        reason = (
            f"the checkpoint has no prediction sets with coverage {coverage:g} for {options}; it "
            f"has {known or 'none'}"
        )
        return None, [PredictionWarning(code=WarningCode.NO_PREDICTION_SET, message=reason)]
    sets = prediction_sets(probabilities, calibration, config.class_names)
    if calibration.options == options:
        return sets, []
    mismatch = (
        f"the prediction sets were calibrated in {calibration.options.precision} and the "
        f"prediction is in {options.precision}: their coverage holds up to the difference between "
        "both"
    )
    return sets, [PredictionWarning(code=WarningCode.OTHER_PRECISION, message=mismatch)]
