"""Sort keys of the report's rows, and the model settings behind them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.sampling import AUTO, Auto
from eulerlora_client.triage.ranking import RankedRow


@dataclass(frozen=True)
class ModelSettings:
    """The model and options of a prediction; most reports hold one combination.

    trajectories: 0 for samples="auto" and mode adaptive, where the number differs between images.
    """

    model: str
    revision: str
    mode: str
    samples: int | Auto
    trajectories: int


def sort_keys(ranked_row: RankedRow, name_ranks: Mapping[str, int]) -> dict[str, float | None]:
    """Returns the value that each column sorts a row by; None for a missing value."""
    prediction = ranked_row.row.result and ranked_row.row.result.prediction
    return {
        "name": name_ranks[ranked_row.name],
        "urgency": ranked_row.urgency,
        "malignant": ranked_row.malignant,
        "entropy": prediction.entropy if prediction else None,
        "mutual": prediction.mutual_information if prediction else None,
    }


def ranks_by_name(rows: Sequence[RankedRow]) -> dict[str, int]:
    """Returns the alphabetical rank of each name, ignoring case."""
    names = sorted({row.name for row in rows}, key=lambda name: (name.casefold(), name))
    return {name: rank for rank, name in enumerate(names)}


def counts_by_settings(rows: Sequence[RankedRow]) -> dict[ModelSettings, int]:
    """Returns the number of predictions per model and options, the most frequent first."""
    results = (row.row.result for row in rows)
    counts = Counter(_settings(result.prediction) for result in results if result is not None)
    return dict(counts.most_common())


def names_of_classes(rows: Sequence[RankedRow]) -> dict[str, str]:
    """Returns the name of every class for people, by its code, as all results state them."""
    names: dict[str, str] = {}
    for row in rows:
        if row.row.result is not None:
            names |= row.row.result.class_names
    return names


def _settings(prediction: Prediction) -> ModelSettings:
    auto = prediction.standard_error is not None or prediction.mode == "adaptive"
    return ModelSettings(
        model=prediction.model,
        revision=prediction.revision,
        mode=prediction.mode,
        samples=AUTO if auto else prediction.samples,
        trajectories=0 if auto else prediction.trajectories,
    )
