"""Measurement of a policy on archives of labelled pictures that had no part in anything."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eulerlora.model import EulerLoRA
from training.data.images import report_skipped
from training.data.local_images import ArchiveLabels, LabelNames, read_local_images
from training.evaluation.inference import SamplingOptions
from training.policy.evidence import MeasuredOn
from training.policy.fit import PolicyFit
from training.policy.measurement import measure_policy
from training.policy.scores import score_images


@dataclass(frozen=True)
class Archive:
    """A folder or tar archive of labelled pictures, and what its labels mean."""

    path: Path
    labels: ArchiveLabels


def measure_archive(
    model: EulerLoRA,
    archive: Archive,
    options: SamplingOptions,
    malignant: Sequence[str],
    fit: PolicyFit,
    skip_bad: bool = False,
) -> MeasuredOn:
    """Returns the performance of fitted thresholds on an archive.

    malignant: classes of the policy's group. skip_bad, errors: as in `read_local_images`; also
    DataError if no picture shows melanoma or all are malignant.
    """
    labels = archive.labels
    names = LabelNames(
        classes=model.classes,
        renamed=labels.labels,
        outside=labels.malignant,
        remedy="name it in the table labels of the archive: {0} = CLASS",
    )
    lesion = None if labels.lesion is None else re.compile(labels.lesion)
    local = read_local_images(archive.path, names, skip_bad, lesion)
    report_skipped(local)
    scored = score_images(model, local.images, options, malignant, labels.title)
    return MeasuredOn(labels.title, measure_policy(scored, fit), labels.malignant)
