"""The queue of a clinic: all images in order of urgency, with or without the flag `unfamiliar`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eulerlora_client.policy.policy import Policy
from eulerlora_client.policy.urgency import TriageStatus
from eulerlora_client.triage.ranking import RankedRow, ranked_row, sort_key
from eulerlora_client.triage.result import TriageRow, decided


@dataclass(frozen=True)
class Picture:
    """A row with what is known about its image.

    source: name of its set. melanoma: the lesion is one. everyday: the image shows no lesion.
    """

    row: TriageRow
    source: str
    melanoma: bool
    everyday: bool


@dataclass(frozen=True)
class QueuedPicture:
    """A picture with its rank under a policy."""

    picture: Picture
    ranked: RankedRow


def queue_of(
    pictures: Iterable[Picture], policy: Policy, heed_unfamiliar: bool
) -> list[QueuedPicture]:
    """Returns the pictures as a policy ranks them, the most urgent first.

    Earlier decisions in the rows do not count. heed_unfamiliar: False ignores the flag of the
    feature distance, as if the checkpoint had no feature statistics. Raises as `Policy.decide`.
    """
    queued = []
    for picture in pictures:
        row = _decided_again(picture.row, policy, heed_unfamiliar)
        queued.append(QueuedPicture(picture, ranked_row(row, str(row.path))))
    return sorted(queued, key=lambda each: sort_key(each.ranked))


def status_counts(queue: Iterable[QueuedPicture], source: str) -> Counter[TriageStatus]:
    """Returns the number of pictures of a set by status."""
    return Counter(each.ranked.status for each in queue if each.picture.source == source)


def first_everyday(queue: Sequence[QueuedPicture]) -> int | None:
    """Returns the position of the first everyday picture, from 1; None without one."""
    places = (place for place, each in enumerate(queue, 1) if each.picture.everyday)
    return next(places, None)


def _decided_again(row: TriageRow, policy: Policy, heed_unfamiliar: bool) -> TriageRow:
    result = row.result
    if result is None:
        return row
    if not heed_unfamiliar:
        prediction = result.prediction.model_copy(update={"unfamiliar": None})
        result = result.model_copy(update={"prediction": prediction})
    return replace(row, result=decided(result, policy))
