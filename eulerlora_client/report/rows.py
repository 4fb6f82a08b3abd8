"""What the report sorts its rows by, and which questions it tells of."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eulerlora.settings import AUTO, Auto
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.triage.ranking import Result


@dataclass(frozen=True)
class Question:
    """What a model was asked; a report usually holds only one.

    trajectories: 0 where each picture had its own number of samples.
    """

    model: str
    revision: str
    mode: str
    samples: int | Auto | None
    trajectories: int


def sort_keys(result: Result, name_ranks: Mapping[str, int]) -> dict[str, float | None]:
    """What each column sorts a result by; None where it has no such figure."""
    found = result.row.prediction
    return {
        "name": name_ranks[result.name],
        "urgency": result.urgency,
        "malignant": result.malignant,
        "entropy": found.entropy if found else None,
        "mutual": found.mutual_information if found else None,
    }


def name_ranks_of(results: Sequence[Result]) -> dict[str, int]:
    """Where each name stands in the alphabet, whatever its case."""
    names = sorted({result.name for result in results}, key=lambda name: (name.casefold(), name))
    return {name: rank for rank, name in enumerate(names)}


def questions_of(results: Sequence[Result]) -> dict[Question, int]:
    """The questions that were asked, with the number of their rows, the most frequent first."""
    found = Counter(
        _question(each.row.prediction) for each in results if each.row.prediction is not None
    )
    return dict(found.most_common())


def _question(found: Prediction) -> Question:
    if found.standard_error is not None:
        return Question(found.model, found.revision, found.mode, AUTO, 0)
    return Question(found.model, found.revision, found.mode, found.samples, found.trajectories)
