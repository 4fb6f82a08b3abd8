"""Response bodies of `/predict` and `/predict/batch`."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from eulerlora_client.contract.fields import (
    Index,
    ItemId,
    Nats,
    PositiveInt,
    Probability,
    RequestId,
    Revision,
    WireModel,
)
from eulerlora_client.contract.problems import SENT_BY_SERVICE
from eulerlora_client.contract.sampling import MAX_SEED, Mode
from eulerlora_client.contract.scores import OodScores, PredictionSet, StandardError


class WarningCode(StrEnum):
    """The codes of the warnings that this version of the service gives."""

    CONVERTED_TO_RGB = "converted_to_rgb"
    CONVERTED_TO_SRGB = "converted_to_srgb"
    PROFILE_IGNORED = "profile_ignored"
    DECLARED_TYPE_DIFFERS = "declared_type_differs"
    SAMPLES_REDUCED = "samples_reduced"
    NO_OOD_THRESHOLD = "no_ood_threshold"
    NO_PREDICTION_SET = "no_prediction_set"
    OTHER_PRECISION = "other_precision"
    DISTRIBUTION_SHIFT = "distribution_shift"


class PredictionWarning(WireModel):
    """A warning about an answer: a stable code and a text for people."""

    code: Annotated[
        str,
        Field(
            description="Stable; later versions of the service may have more codes.",
            json_schema_extra={"enum": [code.value for code in WarningCode]},
        ),
    ]
    message: Annotated[str, Field(description="For people; may change.")]


class Prediction(WireModel):
    """The result for one image. A null has its reason in the warnings.

    Fields with a default are absent unless the request asks for them or the model supports them.
    """

    request_id: RequestId
    model: Annotated[str, Field(description="Name of the model.")]
    revision: Revision
    mode: Annotated[
        Mode,
        Field(
            description="`det`: one pass per adapter; `stoch`: sampled; `adaptive`: one of them, "
            "see `sampled`."
        ),
    ]
    samples: Annotated[
        PositiveInt,
        Field(
            description="Samples per adapter that ran: 1 in mode det; with `samples=auto` the "
            "number that was drawn, also in mode adaptive; fewer than requested with the warning "
            "`samples_reduced`."
        ),
    ]
    trajectories: Annotated[PositiveInt, Field(description="Adapters times samples.")]
    seed: Annotated[
        int,
        Field(
            description="Seed of the draws; repeats the answer with the same image and model.",
            json_schema_extra={"minimum": 0, "maximum": MAX_SEED},
        ),
    ]
    label: Annotated[str, Field(description="The class with the highest probability.")]
    probabilities: Annotated[
        dict[str, Probability],
        Field(
            description="Mean over trajectories, by class name, in the order of the model's "
            "classes; the sum is 1 within 1e-5."
        ),
    ]
    entropy: Annotated[Nats, Field(description="Entropy of the mean prediction, in nats.")]
    expected_entropy: Annotated[
        Nats, Field(description="Mean over trajectories of their entropies, in nats.")
    ]
    mutual_information: Annotated[
        Nats,
        Field(description="Entropy minus expected entropy, in nats: trajectories disagree."),
    ]
    msp: Annotated[Probability, Field(description="The highest probability.")]
    ood: Annotated[
        bool | None,
        Field(
            description="`msp` is below `ood_threshold`; null, with the warning "
            "`no_ood_threshold`, if the checkpoint has no threshold for this mode and number of "
            "samples."
        ),
    ]
    ood_threshold: Annotated[
        float | None, Field(description="Limit of `msp`, 0 to 1; null if `ood` is.")
    ]
    warnings: tuple[PredictionWarning, ...]
    ood_scores: Annotated[
        OodScores | None, Field(description="All out-of-distribution scores.")
    ] = None
    unfamiliar: Annotated[
        bool | None,
        Field(
            description="The flag of `feature_distance`: the image differs from the training "
            "images. Null, with a warning, without a threshold; absent if the checkpoint has no "
            "feature statistics."
        ),
    ] = None
    prediction_set: Annotated[
        PredictionSet | None,
        Field(
            description="Only with `coverage`; null, with the warning `no_prediction_set`, if the "
            "checkpoint is not calibrated for it."
        ),
    ] = None
    sampled: Annotated[
        bool | None,
        Field(
            description="Only in mode adaptive: false if the pass in det settled the answer, which "
            "is then that of det; true if the answer is a mean over samples."
        ),
    ] = None
    rows: Annotated[
        PositiveInt | None,
        Field(
            description="Only in mode adaptive: the passes that ran, with those in det; "
            "`trajectories` are those of the answer."
        ),
    ] = None
    standard_error: Annotated[
        StandardError | None,
        Field(description="Only with `samples=auto`, and for sampled answers of mode adaptive."),
    ] = None
    trajectory_probabilities: Annotated[
        tuple[tuple[Probability, ...], ...] | None,
        Field(
            description="Trajectories x classes, in the order of the class names; only with "
            "`detail=trajectories`."
        ),
    ] = None
    index: Index = None
    item_id: ItemId = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in order."""
        return tuple(self.probabilities)

    @property
    def trajectory_labels(self) -> tuple[str, ...]:
        """The most probable class of each trajectory; () without trajectory_probabilities."""
        rows = self.trajectory_probabilities or ()
        return tuple(self.classes[row.index(max(row))] for row in rows)


class ProblemDocument(WireModel):
    """A problem document (RFC 9457)."""

    type: Annotated[str, Field(description="A URN that ends with the code.")]
    title: Annotated[str, Field(description="The kind of problem, for people; may change.")]
    status: Annotated[int, Field(description="The HTTP status; in a batch, of this item alone.")]
    detail: Annotated[
        str, Field(description="This occurrence, for people; may change. Repeats no input.")
    ]
    code: Annotated[
        str,
        Field(
            description="Stable; later versions of the service may have more codes.",
            json_schema_extra={"enum": sorted(kind.code for kind in SENT_BY_SERVICE)},
        ),
    ]
    request_id: RequestId
    index: Index = None
    item_id: ItemId = None


class PredictionBatch(WireModel):
    """The results for many images."""

    results: Annotated[
        tuple[Prediction | ProblemDocument, ...],
        Field(description="A prediction or a problem for each image, in order."),
    ]
