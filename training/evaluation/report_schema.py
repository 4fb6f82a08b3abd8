"""What an evaluation found, and the JSON that keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from eulerlora.errors import DataError
from eulerlora.settings import Mode, Sampler, first_fault
from training.evaluation.intervals import Estimate, Estimates
from training.evaluation.sensitivity import ClassFigures, Proportion

TEST = "test"
CLEAN = "none, the same images"
"""The name of no corruption."""
JSON = "report.json"


@dataclass(frozen=True)
class GroupFigures:
    """A group of the test part's images.

    clusters: how many lesions, or whatever images share. target: how many images are of the
    target classes. metrics: accuracy, MSP minus accuracy, AUROC and the flagged share.
    sensitivity: share of the target's images that get the label of a target class; None without
    such images, or without a target.
    """

    images: int
    clusters: int
    target: int
    metrics: Estimates
    sensitivity: Proportion | None


@dataclass(frozen=True)
class ModeReport:
    """A checkpoint's figures in one mode.

    sampler: of the samples; None in `det`. metrics: of the test part. classes: by label. ood:
    metrics by the name of the out-of-distribution set. threshold: of the checkpoint, where it has
    one for this mode, sample count and sampler. flagged: share of each set, the test part too,
    below it. groups: figures by group, by what the groups are of. corruptions: metrics by the
    corruption's name.
    """

    mode: Mode
    samples: int
    sampler: Sampler | None
    trajectories: int
    metrics: Estimates
    classes: Mapping[str, ClassFigures]
    ood: Mapping[str, Estimates]
    threshold: float | None
    flagged: Mapping[str, Estimate | None]
    groups: Mapping[str, Mapping[str, GroupFigures]]
    corruptions: Mapping[str, Estimates]

    @property
    def title(self) -> str:
        """The mode and its samples, for people."""
        if self.mode == "det":
            return self.mode
        balanced = "balanced " if self.sampler == "balanced" else ""
        return f"stoch, {self.samples} {balanced}sample{'' if self.samples == 1 else 's'}"


@dataclass(frozen=True)
class Subset:
    """How many images of how many were used."""

    images: int
    of: int


@dataclass(frozen=True)
class Report:
    """All figures of one evaluation, and what they were measured on.

    clusters: of the test part's images; as many as images where none is known. target: classes
    that together must not be missed. corrupted: images that were corrupted, of the test part.
    """

    model: str
    revision: str
    data: str
    images: int
    clusters: int
    target: Sequence[str]
    ood_images: Mapping[str, Subset]
    corrupted: Subset
    modes: Sequence[ModeReport]


_JSON = TypeAdapter(Report)


def report_json(report: Report) -> bytes:
    """The report as JSON; null for what is not defined."""
    return _JSON.dump_json(report, indent=2) + b"\n"


def read_report(folder: Path) -> Report:
    """Reads the report in a folder. Raises DataError if there is none."""
    path = folder / JSON
    try:
        return _JSON.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error)}") from error
