"""One image's way through the service: bytes -> question -> answer -> response body."""

import time
from dataclasses import dataclass

from torch import Tensor

from eulerlora.preprocess import resize
from eulerlora.seeds import content_seed
from eulerlora.settings import Draw
from eulerlora.uncertainty import summarise
from service.decode import decode
from service.engine import Question
from service.errors import InvalidParameter, ModelFailure
from service.schemas import PredictionBody, PredictQuery
from service.served_model import ServedModel
from service.settings import DEFAULT_SAMPLES, ImageLimits
from service.upload import Upload


@dataclass(frozen=True)
class Prepared:
    """A question with what its decoding had to say and the seconds that it took."""

    question: Question
    warnings: tuple[str, ...]
    decoded_s: float


def samples_of(query: PredictQuery) -> int:
    """Samples per adapter: 1 in det, where the client may not ask for any. Raises
    InvalidParameter.
    """
    if query.mode == "stoch":
        return query.samples or DEFAULT_SAMPLES
    if query.samples is not None:
        raise InvalidParameter("samples: belongs to mode=stoch")
    return 1


def prepare(
    upload: Upload, query: PredictQuery, served: ServedModel, limits: ImageLimits
) -> Prepared:
    """The question that an upload and its parameters ask; runs in a decoding thread."""
    started = time.monotonic()
    picture = decode(upload.content, limits, upload.declared)
    model = served.model
    seed = content_seed(picture.pixels, model.revision) if query.seed is None else query.seed
    question = Question(
        pixels=resize(picture.pixels, model.config.preprocessing.size),
        draw=Draw(mode=query.mode, samples=samples_of(query), seed=seed),
    )
    return Prepared(question, picture.warnings, time.monotonic() - started)


def prediction_body(
    log_probabilities: Tensor,
    prepared: Prepared,
    query: PredictQuery,
    served: ServedModel,
    request_id: str,
) -> PredictionBody:
    """The response for one answer.

    log_probabilities: (trajectories, classes). Raises ModelFailure where they are not finite.
    """
    if not log_probabilities.isfinite().all():
        raise ModelFailure("the model gave no finite answer for this image")
    model, draw = served.model, prepared.question.draw
    trajectories = log_probabilities.exp()
    summary = summarise(trajectories.unsqueeze(0))
    msp = summary.msp.item()
    threshold = model.config.threshold(draw.mode, draw.samples)
    probabilities = summary.probabilities[0].tolist()
    details = {"trajectory_probabilities": trajectories.tolist()} if query.detail else {}
    return PredictionBody(
        request_id=request_id,
        model=model.config.name,
        revision=model.revision,
        mode=draw.mode,
        samples=draw.samples,
        trajectories=len(trajectories),
        seed=draw.seed,
        label=model.classes[int(summary.probabilities[0].argmax())],
        probabilities=dict(zip(model.classes, probabilities, strict=True)),
        entropy=summary.entropy.item(),
        expected_entropy=summary.expected_entropy.item(),
        mutual_information=summary.mutual_information.item(),
        msp=msp,
        ood=None if threshold is None else msp < threshold,
        ood_threshold=threshold,
        warnings=list(prepared.warnings),
        **details,
    )
