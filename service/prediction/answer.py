"""Queries -> draws, and answers -> response bodies; nothing here waits."""

from collections.abc import Iterable
from math import exp, isfinite, log
from statistics import fmean
from typing import Any

from torch import Tensor

from eulerlora.adaptive_sampling import standard_errors
from eulerlora.settings import AUTO, Auto, Draw
from eulerlora_client.contract.problems import InvalidParameter, ModelFailure
from service.inference.models import ServedModel
from eulerlora_client.contract.predictions import Prediction, StandardError
from eulerlora_client.contract.queries import PredictQuery
from eulerlora_client.contract.fields import DEFAULT_SAMPLES


def samples_of(query: PredictQuery) -> int | Auto:
    """Samples per adapter: 1 in det, where the client may not ask for any. Raises
    InvalidParameter.
    """
    if query.mode == "stoch":
        return query.samples or DEFAULT_SAMPLES
    if query.samples is not None:
        raise InvalidParameter("samples: belongs to mode=stoch")
    return 1


def fewer_samples(served: ServedModel, samples: int | Auto) -> int | Auto:
    """The largest power of two below `samples` for which the model has a threshold in stoch.

    `samples` itself where there is none. In place of `auto`: of those below the default.
    """
    most = DEFAULT_SAMPLES if samples == AUTO else samples
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent < most]
    known = [each for each in powers if served.model.config.threshold("stoch", each) is not None]
    return max(known) if known else samples


def prediction_body(
    log_probabilities: Tensor,
    draw: Draw,
    served: ServedModel,
    warnings: tuple[str, ...],
    request_id: str,
    detailed: bool,
    auto: bool = False,
) -> Prediction:
    """The response for one answer.

    log_probabilities: (trajectories, classes). draw: what was run. detailed: with the
    probabilities of every trajectory. auto: whether the number of samples was left to the service.
    Raises ModelFailure where they are not finite.
    """
    rows: list[list[float]] = log_probabilities.tolist()
    if not all(isfinite(each) for row in rows for each in row):
        raise ModelFailure("the model gave no finite answer for this image")
    model = served.model
    trajectories = [[exp(each) for each in row] for row in rows]
    mean = [fmean(column) for column in zip(*trajectories, strict=True)]
    entropy, expected = _entropy(mean), fmean(map(_entropy, trajectories))
    msp = max(mean)
    threshold = model.config.threshold(draw.mode, AUTO if auto else draw.samples, draw.sampler)
    details: dict[str, Any] = {"trajectory_probabilities": trajectories} if detailed else {}
    if auto:
        details["standard_error"] = _standard_error(log_probabilities, served)
    return Prediction(
        request_id=request_id,
        model=served.name,
        revision=served.revision,
        mode=draw.mode,
        samples=draw.samples,
        trajectories=len(trajectories),
        seed=draw.seed,
        label=model.classes[mean.index(msp)],
        probabilities=dict(zip(model.classes, mean, strict=True)),
        entropy=entropy,
        expected_entropy=expected,
        mutual_information=max(entropy - expected, 0.0),
        msp=msp,
        ood=None if threshold is None else msp < threshold,
        ood_threshold=threshold,
        warnings=warnings,
        **details,
    )


def _standard_error(log_probabilities: Tensor, served: ServedModel) -> StandardError:
    found = standard_errors(log_probabilities.exp().unflatten(0, (served.engine.rows(1), -1)))
    return StandardError(msp=found.msp.item(), entropy=found.entropy.item())


def _entropy(probabilities: Iterable[float]) -> float:
    """In nats, as `eulerlora.uncertainty` has it; few numbers are quicker without tensors."""
    return sum(-each * log(each) for each in probabilities if each > 0)
