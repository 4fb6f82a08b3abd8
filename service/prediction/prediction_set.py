"""The prediction set that a request asks for."""

from dataclasses import dataclass

from torch import Tensor

from eulerlora.prediction.answer import calibration_for, missing_calibration, precision_mismatch
from eulerlora.scores.prediction_sets import RunOptions, prediction_sets
from eulerlora.settings import Draw
from eulerlora_client.contract.answers import PredictionSet, PredictionWarning, WarningCode
from eulerlora_client.contract.sampling import AUTO
from service.prediction.request import PredictRequest


@dataclass(frozen=True)
class RequestedSet:
    """A prediction set, or None with the reason among the warnings."""

    prediction_set: PredictionSet | None
    warnings: tuple[PredictionWarning, ...] = ()


def requested_set(
    request: PredictRequest, coverage: float, draw: Draw, probabilities: Tensor
) -> RequestedSet:
    """Returns the prediction set of an image; None if the checkpoint is not calibrated for it.

    draw: of the image. probabilities: (classes,) float64.
    """
    model = request.served.model
    samples = AUTO if request.adaptive else draw.samples
    options = RunOptions(request.query.mode, samples, draw.sampler, model.precision)
    calibration = calibration_for(model.config, coverage, options)
    if calibration is None:
        reason = missing_calibration(model.config, coverage, options)
        warning = PredictionWarning(code=WarningCode.NO_PREDICTION_SET, message=reason)
        return RequestedSet(None, (warning,))
    sets = prediction_sets(probabilities[None], calibration, model.classes)
    answered = PredictionSet(
        labels=sets.labels[0],
        coverage=sets.coverage,
        unit=sets.unit,
        calibrated_on=sets.calibrated_on,
    )
    mismatch = precision_mismatch(calibration, model.precision)
    if mismatch is None:
        return RequestedSet(answered)
    warning = PredictionWarning(code=WarningCode.OTHER_PRECISION, message=mismatch)
    return RequestedSet(answered, (warning,))
