"""The outputs of a model for calibration images, and what the thresholds are fitted to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import MAX_SAMPLES, ROUNDS, round_answers
from eulerlora.sampling.decision_margins import DET_ROUND, RoundAnswers
from eulerlora.scores.feature_distance import FeatureDistance
from eulerlora.scores.ood_scores import ScoreName
from eulerlora_client.contract.sampling import Auto, Precision
from training.data.images import LabelledImage
from training.evaluation.inference import ModelOutputs, SamplingOptions, predict_all


@dataclass(frozen=True)
class ScoredImages:
    """Scores and labels of n calibration images for a mode and a number of samples.

    scores: (n,) by name. labels: (n,) predicted class indices of `classes` classes.
    """

    scores: Mapping[ScoreName, Tensor]
    labels: Tensor
    classes: int


@dataclass(frozen=True)
class CalibrationOutputs:
    """The outputs of a model for the calibration images, without and with samples.

    precision: of the model.
    """

    det: ModelOutputs
    stoch: ModelOutputs
    precision: Precision

    @classmethod
    def of(
        cls, model: EulerLoRA, images: Sequence[LabelledImage], samples: Sequence[int | Auto]
    ) -> "CalibrationOutputs":
        """Predicts the images, with the largest of `samples`."""
        largest = max(count if isinstance(count, int) else MAX_SAMPLES for count in samples)
        options = [SamplingOptions("det"), SamplingOptions("stoch", largest)]
        det, stoch = predict_all(model, images, options, "calibrate")
        return cls(det, stoch, model.precision)

    def probabilities(self, samples: Sequence[int | Auto]) -> dict[SamplingOptions, Tensor]:
        """Returns the mean probabilities (n, classes) of `det` and of every number of samples."""
        counts = [count for count in samples if isinstance(count, int)]
        return {
            SamplingOptions("det"): self.det.probabilities(),
            **{
                SamplingOptions("stoch", count): self.stoch.probabilities(count) for count in counts
            },
        }

    def scored(self, distance: FeatureDistance | None) -> dict[int, ScoredImages]:
        """Returns scores and labels by round, as `answers`."""
        stoch = {count: scored_images(self.stoch, distance, count) for count in ROUNDS}
        return {DET_ROUND: scored_images(self.det, distance, 1), **stoch}

    def answers(self, distance: FeatureDistance | None) -> RoundAnswers:
        """Returns the answers by round, for outputs with `MAX_SAMPLES` samples."""
        rounds = {DET_ROUND: (self.det, 1), **{count: (self.stoch, count) for count in ROUNDS}}
        return {
            samples: round_answers(
                outputs.log_probabilities[:, :, :count].exp(),
                samples,
                outputs.scores(distance, count).get("feature_distance"),
            )
            for samples, (outputs, count) in rounds.items()
        }


def scored_images(
    outputs: ModelOutputs, distance: FeatureDistance | None, samples: int
) -> ScoredImages:
    """Returns scores and labels from the first `samples` samples of each adapter."""
    probabilities = outputs.probabilities(samples)
    scores = outputs.scores(distance, samples)
    return ScoredImages(scores, probabilities.argmax(dim=-1), probabilities.shape[-1])
