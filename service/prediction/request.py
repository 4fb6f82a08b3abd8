"""A validated prediction request, with its settings for every image."""

import math
from dataclasses import dataclass, field, replace
from typing import Self

from eulerlora.adaptive_sampling import ROUNDS
from eulerlora.settings import AUTO, Auto, Draw
from eulerlora_client.contract.predictions import PredictionWarning, WarningCode
from eulerlora_client.contract.problems import InvalidParameter
from eulerlora_client.contract.queries import PredictQuery
from eulerlora_client.contract.sampling import DEFAULT_SAMPLES
from eulerlora_client.policy.policy import Policy
from service.inference.models import ServedModel
from service.scheduling.clients import Flow


@dataclass(frozen=True)
class PredictRequest:
    """A request for predictions; the same for all of its images.

    served: the model revision for this request, even if it is replaced in the meantime. samples:
    the number to run, which may be lower than requested. client: the API client, None without
    keys. policy: the triage policy to apply, if any. flow: its share of decoders and inference.
    accepted_at, deadline: on the monotonic clock; the body was complete at `accepted_at`. warnings:
    for the response. index: of the image in a batch.
    """

    query: PredictQuery
    served: ServedModel
    samples: int | Auto
    request_id: str
    client: str | None = None
    policy: Policy | None = None
    flow: Flow = field(default_factory=Flow)
    accepted_at: float = -math.inf
    deadline: float = math.inf
    warnings: tuple[PredictionWarning, ...] = ()
    index: int | None = None

    def draw(self, seed: int) -> Draw:
        """Returns the draw for one image; with `auto`, of the first round."""
        return Draw(
            mode=self.query.mode,
            samples=ROUNDS[0] if self.samples == AUTO else self.samples,
            seed=seed,
            sampler=self.served.model.config.sampler,
            sampled_from_block=self.served.model.config.sampled_from_block,
        )

    def with_fewer_samples(self) -> Self:
        """Returns the request with reduced samples and a warning, or unchanged if impossible."""
        if self.query.mode == "det":
            return self
        samples = fewer_samples(self.served, self.samples)
        if samples == self.samples:
            return self
        warning = PredictionWarning(
            code=WarningCode.SAMPLES_REDUCED,
            message=f"samples reduced from {self.samples} to {samples} under load",
        )
        return replace(self, samples=samples, warnings=(*self.warnings, warning))


def requested_samples(query: PredictQuery) -> int | Auto:
    """Returns the samples per adapter: 1 in mode det, otherwise as requested or the default.

    Raises InvalidParameter for a number of samples in mode det.
    """
    if query.mode == "stoch":
        return query.samples or DEFAULT_SAMPLES
    if query.samples is not None:
        raise InvalidParameter("samples: expected only with mode=stoch")
    return 1


def fewer_samples(served: ServedModel, samples: int | Auto) -> int | Auto:
    """Returns the largest power of two below `samples` for which the model has a threshold.

    `auto` counts as the default number of samples. Returns `samples` if there is no such number.
    """
    limit = DEFAULT_SAMPLES if samples == AUTO else samples
    powers = [2**exponent for exponent in range(limit.bit_length()) if 2**exponent < limit]
    config = served.model.config
    calibrated = [power for power in powers if config.threshold("stoch", power) is not None]
    return max(calibrated) if calibrated else samples
