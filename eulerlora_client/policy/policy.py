"""The triage policy: the suggested next step for an image, with reasons.

The first rule that applies decides: unfamiliar features -> unfamiliar; poor quality -> retake; out
of distribution -> refer; the malignant group at or above its threshold -> urgent; an uncertain
model, or trajectories that disagree -> refer; anything else -> routine. One rule overrides the
order: an MSP below the OOD threshold never lowers urgency. A value equal to its threshold counts as
beyond it. A decision lists all reasons that apply.

An unfamiliar image is never urgent: its malignant probability carries no information. Training on
outliers makes the probabilities of such images nearly equal, so that the malignant classes, three
of seven, add up to about 3/7 = 0.43, which is above any threshold that finds most melanomas.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from eulerlora_client.contract.fields import PositiveInt
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import Disposition, ImageQuality, Reason
from eulerlora_client.errors import PolicyError, SettingsError
from eulerlora_client.policy.evidence import Evidence
from eulerlora_client.policy.rules import MalignantRules, QualityRules, UncertaintyRules
from eulerlora_client.policy.urgency import urgency
from eulerlora_client.settings import Settings, first_error, validated

DEFAULT_FILE = "policy.toml"

SUGGESTED_DISPOSITIONS: Mapping[Reason, Disposition] = {
    Reason.TOO_SMALL: Disposition.RETAKE,
    Reason.TOO_DARK: Disposition.RETAKE,
    Reason.TOO_BRIGHT: Disposition.RETAKE,
    Reason.BLURRED: Disposition.RETAKE,
    Reason.UNFAMILIAR: Disposition.UNFAMILIAR,
    Reason.OUT_OF_DISTRIBUTION: Disposition.REFER,
    Reason.OOD_UNKNOWN: Disposition.REFER,
    Reason.MALIGNANT_GROUP: Disposition.URGENT,
    Reason.HIGH_ENTROPY: Disposition.REFER,
    Reason.TRAJECTORIES_DISAGREE: Disposition.REFER,
    Reason.TRAJECTORIES_UNKNOWN: Disposition.REFER,
}
"""The disposition that a reason suggests if no other reason applies."""


@dataclass(frozen=True)
class Decision:
    """The decision of a policy on one image; `reasons` is empty if and only if it is routine."""

    disposition: Disposition
    reasons: tuple[Reason, ...]
    policy_version: int
    policy_hash: str


class Policy(Settings):
    """The content of a policy file. version: raised with every change."""

    format_version: Literal[1]
    version: PositiveInt
    quality: QualityRules
    malignant: MalignantRules
    uncertainty: UncertaintyRules
    evidence: Evidence | None = None

    @property
    def hash(self) -> str:
        """SHA-256 of the content as canonical JSON; comments and layout do not count."""
        content = json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        )
        return "sha256:" + hashlib.sha256(content.encode()).hexdigest()

    def decide(self, prediction: Prediction, quality: ImageQuality) -> Decision:
        """Returns the decision on an image. Raises PolicyError as `malignant_probability`."""
        reasons = (*self.quality_reasons(quality), *self._prediction_reasons(prediction))
        return Decision(disposition_for(reasons), reasons, self.version, self.hash)

    def malignant_probability(self, prediction: Prediction) -> float:
        """Returns the summed probability of the malignant group.

        Raises PolicyError if the model lacks a class of the group.
        """
        missing = [name for name in self.malignant.classes if name not in prediction.probabilities]
        if missing:
            raise PolicyError(
                f"the policy's malignant group requires the classes {', '.join(missing)}; the "
                f"model {prediction.model} has {', '.join(prediction.probabilities)}"
            )
        return math.fsum(prediction.probabilities[name] for name in self.malignant.classes)

    def fitted_to(self, prediction: Prediction) -> bool:
        """Returns True if the urgent threshold was set for this model, revision, mode and samples.

        False for samples="auto" and mode adaptive: a threshold is set for a fixed number.
        """
        evidence = self.evidence
        if evidence is None or prediction.standard_error is not None:
            return False
        fitted = (evidence.revision, evidence.mode, evidence.samples)
        return fitted == (prediction.revision, prediction.mode, prediction.samples)

    def quality_reasons(self, quality: ImageQuality) -> Iterator[Reason]:
        """Yields the reasons to retake an image."""
        rules = self.quality
        if min(quality.width, quality.height) <= rules.too_small_px:
            yield Reason.TOO_SMALL
        if quality.brightness <= rules.too_dark or quality.dark_share >= rules.too_dark_share:
            yield Reason.TOO_DARK
        if quality.brightness >= rules.too_bright or quality.bright_share >= rules.too_bright_share:
            yield Reason.TOO_BRIGHT
        if quality.sharpness <= rules.blurred:
            yield Reason.BLURRED

    def _prediction_reasons(self, prediction: Prediction) -> Iterator[Reason]:
        if prediction.unfamiliar:
            yield Reason.UNFAMILIAR
        if prediction.ood is None:
            yield Reason.OOD_UNKNOWN
        elif prediction.ood:
            yield Reason.OUT_OF_DISTRIBUTION
        if self.malignant_probability(prediction) >= self.malignant.urgent:
            yield Reason.MALIGNANT_GROUP
        if prediction.entropy >= self.uncertainty.entropy_nats:
            yield Reason.HIGH_ENTROPY
        labels = prediction.trajectory_labels
        if len(set(labels)) > 1:
            yield Reason.TRAJECTORIES_DISAGREE
        elif prediction.trajectories > 1 and not labels:
            yield Reason.TRAJECTORIES_UNKNOWN


def disposition_for(reasons: Sequence[Reason]) -> Disposition:
    """Returns the disposition for all reasons together.

    Unfamiliar comes first, then retake, then the most urgent one. This is equivalent to the ordered
    rules and their exception in the module's docstring.
    """
    suggested = {SUGGESTED_DISPOSITIONS[reason] for reason in reasons}
    for overriding in (Disposition.UNFAMILIAR, Disposition.RETAKE):
        if overriding in suggested:
            return overriding
    return max(suggested, key=urgency, default=Disposition.ROUTINE)


def default_policy() -> Policy:
    """Returns the packaged policy."""
    return parse_policy(default_policy_text(), DEFAULT_FILE)


def default_policy_text() -> str:
    """Returns the text of the packaged policy file."""
    return files("eulerlora_client.policy").joinpath(DEFAULT_FILE).read_text(encoding="utf-8")


def read_policy(path: Path) -> Policy:
    """Reads a policy file. Raises SettingsError with the file and the key."""
    return parse_policy(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Returns the text of a policy file. Raises SettingsError with the file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: expected TOML in UTF-8 ({error})") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error


def policy_of(content: Mapping[str, Any], name: str) -> Policy:
    """Returns the policy that a service describes; ignores keys of later versions.

    Raises SettingsError, with a message that begins with `name`.
    """
    try:
        return Policy.model_validate(content, extra="ignore")
    except ValidationError as error:
        raise SettingsError(f"{name}: {first_error(error, Policy)}") from error


def parse_policy(text: str, name: str) -> Policy:
    """Returns the policy in a TOML text; errors begin with `name`. Raises SettingsError."""
    try:
        return validated(Policy, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, SettingsError) as error:
        raise SettingsError(f"{name}: {error}") from error
