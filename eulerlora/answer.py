"""The answer for images: uncertainty, scores, flags and sets, as numbers and as fields of JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import torch
from pydantic_core import to_jsonable_python
from torch import Tensor

from eulerlora.scores.ood_scores import FeatureDistance, ScoredByName, ScoreName, ood_scores
from eulerlora.scores.prediction_sets import PredictionSets
from eulerlora.scores.trajectories import Trajectories
from eulerlora.scores.uncertainty import Uncertainty, Variance, uncertainty_of, variance_of
from eulerlora_contract import answers as contract
from eulerlora_contract.answers import PredictionWarning, shown_fields
from eulerlora_contract.checkpoints import Threshold
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.sampling import Options, RuntimeName

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_PROBABILITY = 1e-30
"""Lower limit of a probability in log-odds."""
_HTML_ROWS = 50


@dataclass(frozen=True)
class Predictions(Uncertainty):
    """The answer for n images; tensors are on the CPU, float64 unless stated otherwise.

    It is also a sequence of n dictionaries, with the keys of a response of `POST /predict`, in the
    order of the images; those of files begin with `file`. A notebook shows it as a table.

    `of` makes it of trajectories alone, without class names, options and what rests on them;
    `eulerlora.inference.InferenceModel.answer` adds these.

    Attributes:
        log_probabilities: (n, adapters * samples, classes), adapter by adapter; in mode det
            (n, adapters * views, classes). If images have different numbers of samples, those with
            fewer are filled with NaN.
        trajectory_views: (n, trajectories) int64, the view of each (`eulerlora.nn.rows`); 0 is the
            image, and where trajectories are filled with NaN.
        adapters: Their number.
        samples: (n,) int64, samples per adapter of the answer.
        agreement: (n,), the least log-odds of the label against another class among the
            trajectories; negative if a trajectory has another label.
        ood_scores: Values, thresholds and flags of all scores by name; without feature_distance if
            there are no statistics.
        classes: Their names, in the order of the probabilities.
        options: That the images were predicted with.
        runtime: The library that ran the network.
        rows: (n,) int64, rows that were run; None unless samples="auto".
        coverage: The coverage that was asked for; None for no prediction sets.
        prediction_sets: None without a coverage, or if the checkpoint is not calibrated for it.
        warnings: Reasons for missing results, and conversions of images, such as those of colours.
        files: The paths of the images, if all were files.
    """

    log_probabilities: Tensor
    trajectory_views: Tensor
    adapters: int
    samples: Tensor
    agreement: Tensor
    ood_scores: ScoredByName
    classes: tuple[str, ...] = ()
    options: Options | None = None
    runtime: RuntimeName = "torch"
    rows: Tensor | None = None
    coverage: float | None = None
    prediction_sets: PredictionSets | None = None
    warnings: tuple[PredictionWarning, ...] = ()
    files: tuple[Path, ...] = ()

    @classmethod
    def of(
        cls,
        trajectories: Trajectories,
        distance: FeatureDistance | None = None,
        thresholds: Threshold | None = None,
    ) -> Self:
        """The numbers of n images; a `distance` of None leaves out its score.

        Raises:
            NonFiniteError: For NaN or infinite logits.
        """
        trajectories.check_finite()
        samples, (adapters, most) = trajectories.samples, trajectories.views.shape[1:]

        def of_group(images: Tensor | None, count: int) -> dict[str, Tensor]:
            part = trajectories if images is None else trajectories.images(images).first(count)
            return _values(part)

        values = _by_samples(samples, most, of_group)
        distances = None if distance is None else distance(values["features"])
        uncertainty: dict[str, Any] = {
            field.name: values[field.name] for field in fields(Uncertainty)
        }
        return cls(
            **uncertainty,
            log_probabilities=trajectories.flat_log_probabilities,
            trajectory_views=trajectories.views.flatten(1),
            adapters=adapters,
            samples=samples,
            agreement=values["agreement"],
            ood_scores=ood_scores(values["msp"], values["log_partition"], distances, thresholds),
        )

    @property
    def trajectories(self) -> Tensor:
        """(n, trajectories, classes) probabilities; NaN as in `log_probabilities`."""
        return self.log_probabilities.exp()

    @cached_property
    def variance(self) -> Variance:
        """Its parts between adapters, views and samples, and within trajectories."""
        shape = (self.adapters, -1)
        probabilities = self.trajectories.unflatten(1, shape)
        views = self.trajectory_views.unflatten(1, shape)
        counts = (~probabilities[:, 0, :, 0].isnan()).sum(dim=1)  # (n,)

        def of_group(images: Tensor | None, count: int) -> dict[str, Tensor]:
            chosen = slice(None) if images is None else images
            parts = variance_of(probabilities[chosen, :, :count], views[chosen, :, :count])
            return vars(parts)

        return Variance(**_by_samples(counts, views.shape[2], of_group))

    @property
    def predicted(self) -> Tensor:
        """(n,) int64, the index of the class with the highest mean probability."""
        return self.probabilities.argmax(dim=-1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of the class with the highest mean probability, one per image."""
        return tuple(self.classes[index] for index in self.predicted.tolist())

    @property
    def views(self) -> Tensor:
        """(n,) int64, number of views of the image that the trajectories share between them."""
        assert self.options is not None
        return torch.full_like(self.samples, self.options.views)

    def probability(self, classes: Sequence[str]) -> Tensor:
        """(n,) summed probability of some classes, by name."""
        return self.probabilities[:, [self.classes.index(name) for name in classes]].sum(dim=-1)

    @property
    def flags(self) -> dict[ScoreName, Tensor]:
        """(n,) bool, whether an image is flagged, by name of the score with a threshold."""
        scores = self.ood_scores.items()
        return {name: score.flagged for name, score in scores if score.flagged is not None}

    @property
    def ood(self) -> Tensor | None:
        """(n,) bool, True if the MSP is below the checkpoint's threshold; None without a threshold
        for these options.
        """
        return self.flags.get("msp")

    @property
    def unfamiliar(self) -> Tensor | None:
        """(n,) bool, True if the feature distance is above its threshold; None without one."""
        return self.flags.get("feature_distance")

    @property
    def feature_distance(self) -> Tensor | None:
        """(n,) its score; None without feature statistics."""
        score = self.ood_scores.get("feature_distance")
        return None if score is None else score.value

    def __len__(self) -> int:
        return len(self.msp)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer for one image, as values of JSON; -1 is the last one; a list for a slice."""
        count = len(self)
        if isinstance(index, slice):
            return [self[one] for one in range(count)[index]]
        try:
            index = range(count)[index]
        except IndexError as error:
            bound = f"below {count}" if index >= 0 else f"of at least {-count}"
            raise IndexError(f"expected an index {bound}, got {index}") from error
        file = {"file": str(self.files[index])} if self.files else {}
        answer: dict[str, Any] = to_jsonable_python(file | self.response_fields(index))
        return answer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    def response_fields(self, index: int, detail: bool = False) -> dict[str, Any]:
        """What a response body states about the answer for an image.

        The keys are fields of `eulerlora_contract.answers.Prediction`. Those that the options did
        not ask for, or that the checkpoint does not have, are absent.

        Args:
            index: Of the image.
            detail: Also what is known of each trajectory.
        """
        options = self.options
        assert options is not None
        scores = {
            name: contract.OodScore(
                value=score.value[index].item(),
                threshold=score.threshold,
                flagged=None if score.flagged is None else bool(score.flagged[index]),
            )
            for name, score in self.ood_scores.items()
        }
        passes = ~self.log_probabilities[index].isnan().any(dim=-1)
        probabilities = self.probabilities[index].tolist()
        stated: dict[str, Any] = {
            "mode": options.mode,
            "samples": int(self.samples[index]),
            "trajectories": int(passes.sum()),
            "label": self.classes[probabilities.index(max(probabilities))],
            "probabilities": dict(zip(self.classes, probabilities, strict=True)),
            **{
                name: getattr(self, name)[index].item()
                for name in ("entropy", "expected_entropy", "mutual_information", "msp")
            },
            "ood": scores["msp"].flagged,
            "ood_threshold": scores["msp"].threshold,
            "ood_scores": contract.OodScores(**scores),
        }
        if options.sampler != "independent":
            stated["sampler"] = options.sampler
        if options.views > 1:
            stated["views"] = options.views
        if options.precision != "float32":
            stated["precision"] = options.precision
        if self.runtime != "torch":
            stated["runtime"] = self.runtime
        if "feature_distance" in scores:
            stated["unfamiliar"] = scores["feature_distance"].flagged
        if self.rows is not None:
            stated["rows"] = int(self.rows[index])
        if self.coverage is not None:
            stated["prediction_set"] = None
        if (sets := self.prediction_sets) is not None:
            stated["prediction_set"] = contract.PredictionSet(
                labels=sets.labels[index],
                coverage=sets.coverage,
                unit=sets.unit,
                calibrated_on=sets.calibrated_on,
            )
        if detail:
            stated["trajectory_probabilities"] = self.trajectories[index, passes].tolist()
            parts = {name: part[index].item() for name, part in vars(self.variance).items()}
            stated["variance"] = contract.Variance(**parts)
            if options.views > 1:
                stated["trajectory_views"] = self.trajectory_views[index, passes].tolist()
        return stated

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns by name, with a value for each image: those of `eulerlora predict --csv`.

        `p_CLASS` is the probability of a class. A missing value is None. Unlike the CSV file, it
        has the figures of unfamiliar images, and `file` only if all images were files.
        """
        columns: dict[str, list[Any]] = {}
        for row in self:
            for name, value in table_row(row).items():
                columns.setdefault(name, []).append(value)
        return columns

    def to_frame(self) -> Any:
        """`to_dict` as pandas' `DataFrame`, a row for each image.

        Raises:
            SettingsError: Without pandas, which the extra `notebook` installs.
        """
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
    absent = {
        "sampler": "independent", "views": 1, "precision": "float32", "runtime": "torch",
        "unfamiliar": None,
    }  # fmt: skip
    row = {**answer, **absent, **answer, **scores}  # in the order of the answer
    if included := row.get("prediction_set"):
        row["prediction_set"] = included["labels"]
    probabilities = row.pop("probabilities", {})
    for name in ("trajectories", "ood_scores", "ood_threshold"):
        row.pop(name, None)
    return row | {f"p_{name}": value for name, value in probabilities.items()}


def _by_samples(
    samples: Tensor, most: int, of_group: Callable[[Tensor | None, int], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The values of n images by name, (n, ...), made for the images of each number of samples.

    Args:
        samples: (n,), of the images.
        most: Number of samples that there is room for.
        of_group: From the indices of images and their number of samples to their values; None for
            all images, with the full number.
    """
    if (samples == most).all():
        return of_group(None, most)
    counts = samples.unique().tolist()
    groups = [(samples == count).nonzero()[:, 0] for count in counts]
    parts = [of_group(images, count) for images, count in zip(groups, counts, strict=True)]
    order = torch.cat(groups).argsort()
    return {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}


def _values(part: Trajectories) -> dict[str, Tensor]:
    """The values of n images with equal numbers of samples by name, (n, ...)."""
    probabilities = part.flat_log_probabilities.exp()  # (n, trajectories, classes)
    uncertainty = uncertainty_of(probabilities)
    label = uncertainty.probabilities.argmax(dim=-1)[:, None, None].expand(
        -1, probabilities.shape[1], 1
    )
    limited = probabilities.clamp_min(MIN_PROBABILITY)
    others = limited.scatter(-1, label, 0).amax(dim=-1)
    leads = limited.gather(-1, label)[..., 0].log() - others.log()  # (n, trajectories)
    return {
        **vars(uncertainty),
        "agreement": leads.amin(dim=-1),
        "log_partition": part.log_partition.mean(dim=(1, 2)),
        "features": part.features.mean(dim=(1, 2)),
    }
