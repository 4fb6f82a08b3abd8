"""A validated prediction request and its images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eulerlora.sampling.adaptive import MAX_AUTO_SAMPLES, SettledDecisions, StoppingRule
from eulerlora.settings import Draw
from eulerlora_client.image_formats import ImageHeader
from eulerlora_contract.answers import ImageQuality, PredictionWarning
from eulerlora_contract.policy.policy import Policy, dispositions
from eulerlora_contract.problems import (
    BodyTooLarge,
    InvalidParameter,
    InvalidUpload,
    Problem,
)
from eulerlora_contract.queries import PredictQuery
from eulerlora_contract.sampling import AUTO, DEFAULT_SAMPLES, Auto, Views
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
        accepted_at: On the monotonic clock.
        deadline: On the monotonic clock.
        warnings: For the response.
        index: Of the image in a batch.
    """

    query: PredictQuery
    served: ServedModel
    samples: int | Auto
    request_id: str
    client: str
    key_name: str | None
    policy: Policy | None
    accepted_at: float
    deadline: float
    warnings: tuple[PredictionWarning, ...]
    index: int | None

    @property
    def views(self) -> Views:
        """The views that the trajectories of an image share between them."""
        return self.query.views or self.served.model.config.default_views(self.query.mode)

    def draw(self, seed: int) -> Draw:
        """Returns the draw for one image; if it runs in rounds, of all that may run."""
        return Draw(
            mode=self.query.mode,
            samples=MAX_AUTO_SAMPLES if self.samples == AUTO else self.samples,
            seed=seed,
            sampler=self.served.model.config.sampler,
            views=self.views,
        )


def requested_samples(query: PredictQuery, served: ServedModel) -> int | Auto:
    """Returns the samples per adapter: 1 in mode det, otherwise as requested or the default.

    Raises:
        InvalidParameter: For samples in mode det, and for `auto` if the model has no decision
            margins or other views.
    """
    if query.mode == "det" and query.samples is not None:
        raise InvalidParameter("samples: expected only with mode=stoch")
    config = served.model.config
    if query.samples == AUTO and config.margins is None:
        raise InvalidParameter(
            "samples: expected a number, because the model has no decision margins for auto; "
            "eulerlora calibrate fits them"
        )
    if query.samples == AUTO and query.views not in (None, config.views):
        raise InvalidParameter(f"views: expected {config.views}, the model's, with samples=auto")
    return 1 if query.mode == "det" else query.samples or DEFAULT_SAMPLES


def rule_of(request: PredictRequest, quality: ImageQuality | None) -> StoppingRule | None:
    """Returns when the rounds of an image end; None for one pass.

    With a policy, `quality` is that of the image, and the rounds end when the disposition is
    settled.
    """
    if request.samples != AUTO:
        return None
    config = request.served.model.config
    rule = config.stopping_rule()
    if request.policy is None or quality is None:
        return rule
    rules, classes = request.policy, request.served.model.classes
    target = [classes.index(name) for name in rules.target.classes]
    poor = dict.fromkeys(rules.quality_reasons(quality), True)

    def settled(decisions: SettledDecisions) -> bool:
        states = rule.states(decisions, target, rules.target.urgent, rules.uncertainty.entropy_nats)
        return sum(dispositions(poor | states).values()) == 1

    return replace(rule, policy=settled)
