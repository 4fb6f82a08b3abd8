"""A validated prediction request and its images."""

from collections.abc import Sequence
from dataclasses import dataclass

from eulerlora.sampling.adaptive import StoppingRule
from eulerlora_client.image_formats import ImageHeader
from eulerlora_contract.answers import ImageQuality, PredictionWarning
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.policy.policy import Policy
from eulerlora_contract.problems import (
    BodyTooLarge,
    InvalidParameter,
    InvalidUpload,
    Problem,
)
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import AUTO, Options
from service.decoding.decode import estimated_s, header_of
from service.http.requests import Upload
from service.inference.engine import ServedModel
from service.settings import ImageSettings


@dataclass(frozen=True)
class RequestImage:
    """An uploaded file.

    Attributes:
        header: Of the image, or the problem of a file that has none.
    """

    upload: Upload
    header: ImageHeader | Problem

    @property
    def pixels(self) -> int:
        """Width times height; 0 without a header."""
        return 0 if isinstance(self.header, Problem) else self.header.pixels

    @property
    def estimated_s(self) -> float:
        """Estimated CPU seconds to decode it; 0 without a header."""
        return 0.0 if isinstance(self.header, Problem) else estimated_s(self.header)


def images_of(uploads: Sequence[Upload], limits: ImageSettings) -> list[RequestImage]:
    """Returns the images of a request; nothing is decoded.

    Raises:
        BodyTooLarge: If they have more than `limits.max_request_pixels` pixels together.
    """
    images = [RequestImage(upload, _header(upload, limits)) for upload in uploads]
    pixels = sum(image.pixels for image in images)
    if len(images) > 1 and pixels > limits.max_request_pixels:
        raise BodyTooLarge(
            f"expected images of at most {limits.max_request_pixels:,} pixels together; "
            f"these have {pixels:,}"
        )
    return images


def _header(upload: Upload, limits: ImageSettings) -> ImageHeader | Problem:
    if not upload.content:
        return InvalidUpload("the file is empty")
    try:
        return header_of(upload.content, limits)
    except Problem as problem:
        return problem


@dataclass(frozen=True)
class PredictRequest:
    """A request for the prediction of one image, from the moment when its body is complete.

    Attributes:
        served: The model revision for this request, even if it is replaced in the meantime.
        client: Who shares decoders and inference with others.
        key_name: The name of the API key, None without keys.
        policy: The triage policy to apply, if any.
        accepted_at: The time when its body was complete, on the monotonic clock.
        deadline: On the monotonic clock; its inference does not start later.
        warnings: For the response.
        index: Of the image in a batch.
    """

    query: PredictQuery
    served: ServedModel
    options: Options
    request_id: str
    client: str
    key_name: str | None
    policy: Policy | None
    accepted_at: float
    deadline: float
    warnings: tuple[PredictionWarning, ...]
    index: int | None


def options_of(query: PredictQuery, served: ServedModel) -> Options:
    """Returns the options of a request.

    Raises:
        InvalidParameter: As `CheckpointConfig.options`.
    """
    try:
        return served.model.options(query.mode, query.samples, views=query.views)
    except SettingsError as error:
        raise InvalidParameter(str(error)) from error


def rule_of(request: PredictRequest, quality: ImageQuality | None) -> StoppingRule | None:
    """Returns when the rounds of an image end; None for one pass.

    With a policy, `quality` is that of the image, and the rounds end when the disposition is
    settled.
    """
    if request.options.samples != AUTO:
        return None
    model, policy = request.served.model, request.policy
    rule = model.config.stopping_rule(model.precision)
    if policy is None or quality is None:
        return rule
    return rule.of_policy(policy, model.classes, tuple(policy.quality_reasons(quality)))
