"""Parts of a prediction: out-of-distribution scores, prediction set and standard errors."""

from typing import Annotated

from pydantic import Field

from eulerlora_client.contract.fields import Nats, Probability, WireModel


class StandardError(WireModel):
    """Standard errors of a result with `samples=auto`, compared with unlimited samples.

    The value plus and minus two errors is a 95% interval that accounts for the adaptive number of
    samples. With an earlier embedded model it covered 97% of the answers with independent samples
    and 99% with balanced ones; of those that stop after two independent samples, 93%
    (docs/sampling.md).
    """

    msp: Annotated[float, Field(ge=0, description="Of the highest probability.")]
    entropy: Annotated[Nats, Field(description="Of the entropy, in nats.")]


class OodScore(WireModel):
    """An out-of-distribution score of one image."""

    value: Annotated[float, Field(description="The score; `OodScores` states its unit.")]
    threshold: Annotated[
        float | None,
        Field(
            description="Limit in the unit of the score: `msp` is flagged below it, the other "
            "scores above theirs. Null, with a warning, if the checkpoint has no threshold of this "
            "score for the mode and the number of samples."
        ),
    ]
    flagged: Annotated[
        bool | None,
        Field(description="The score is beyond its threshold; null without a threshold."),
    ]


class OodScores(WireModel):
    """The out-of-distribution scores of one image."""

    msp: Annotated[OodScore, Field(description="The highest probability, 0 to 1.")]
    energy: Annotated[
        OodScore,
        Field(
            description="Minus the mean over trajectories of the log-sum-exp of their logits, in "
            "nats."
        ),
    ]
    feature_distance: Annotated[
        OodScore | None,
        Field(
            description="Mahalanobis distance of the image's features to the nearest class of the "
            "training data, in standard deviations; absent if the checkpoint has no feature "
            "statistics."
        ),
    ] = None


class PredictionSet(WireModel):
    """A set of classes that contains the true one with a stated probability."""

    labels: Annotated[
        tuple[str, ...],
        Field(description="Class names in the order of the model's classes; may be empty."),
    ]
    coverage: Annotated[
        Probability,
        Field(
            description="For each class, the least probability that the sets of all images of a "
            "new lesion of this class contain it, if the lesion comes from the distribution of the "
            "calibration data."
        ),
    ]
    unit: Annotated[
        str,
        Field(description="`lesion`, or `image` if the calibration data do not state lesions."),
    ]
    calibrated_on: Annotated[str, Field(description="The calibration data.")]
