"""The out-of-distribution scores of one image, as the contract states them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from eulerlora.nn.runtime import ImageOutput
from eulerlora.prediction import answer
from eulerlora.scores import ood_scores as scoring
from eulerlora.scores.ood_scores import ScoreName
from eulerlora.settings import Draw
from eulerlora_client.contract.answers import OodScore, OodScores, PredictionWarning, WarningCode
from eulerlora_client.contract.sampling import AUTO
from service.prediction.request import PredictRequest


@dataclass(frozen=True)
class ImageScores:
    """The scores of one image, and a warning for each flag that is null."""

    scores: OodScores
    warnings: tuple[PredictionWarning, ...]

    @property
    def unfamiliar(self) -> bool | None:
        """The flag of the feature distance; None if it is unknown."""
        distance = self.scores.feature_distance
        return None if distance is None else distance.flagged


def image_scores(
    output: ImageOutput, msp: Tensor, request: PredictRequest, draw: Draw
) -> ImageScores:
    """Returns the scores of one image.

    msp: (1,). draw: of all its samples.
    """
    model, mode = request.served.model, request.query.mode
    samples = AUTO if request.adaptive else draw.samples
    thresholds = model.config.threshold(mode, samples, draw.sampler)
    values = answer.image_scores([output], msp, model.feature_distance)
    scores = {
        name: OodScore(
            value=score.value.item(),
            threshold=score.threshold,
            flagged=None if score.flagged is None else bool(score.flagged.item()),
        )
        for name, score in scoring.ood_scores(values, thresholds).items()
    }
    answered = OodScores(**scores)
    settings = f"{mode} with samples={samples}" if mode == "stoch" else mode
    return ImageScores(answered, tuple(_warnings(scores, settings)))


def _warnings(scores: Mapping[ScoreName, OodScore], settings: str) -> Iterator[PredictionWarning]:
    """Yields the reason of every null flag; a missing threshold of the MSP explains all of them."""
    missing = [name for name, score in scores.items() if score.flagged is None]
    if "msp" in missing:
        message = f"the checkpoint has no OOD threshold for mode {settings}"
    elif missing:
        message = f"the checkpoint has no threshold of {', '.join(missing)} for mode {settings}"
    else:
        return
    yield PredictionWarning(code=WarningCode.NO_OOD_THRESHOLD, message=message)
