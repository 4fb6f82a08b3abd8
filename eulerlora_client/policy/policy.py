"""The triage policy: what to do next for a picture, and why.

The rules, in their order, of which the first that applies decides: a picture of poor quality is
taken again; one that is far from what the model knows is referred; the malignant group at or
above its threshold is urgent; an unsure model, or one whose trajectories disagree, refers;
anything else is routine. One rule stands over the order: being far from what the model knows
never lowers urgency, so that such a picture is urgent where the malignant group makes it so.
Every threshold belongs to the more severe side. All reasons that apply are kept.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from eulerlora.errors import EulerLoRAError, SettingsError
from eulerlora.settings import PositiveInt, Settings, validated
from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import Disposition, ImageQuality, Reason
from eulerlora_client.policy.rules import Evidence, MalignantRules, QualityRules, UncertaintyRules
from eulerlora_client.policy.urgency import urgency

DEFAULT = "policy.toml"


class PolicyError(EulerLoRAError):
    """A policy cannot be applied to a prediction: they speak of different classes."""


SUGGESTS: Mapping[Reason, Disposition] = {
    Reason.TOO_SMALL: Disposition.RETAKE,
    Reason.TOO_DARK: Disposition.RETAKE,
    Reason.TOO_BRIGHT: Disposition.RETAKE,
    Reason.BLURRED: Disposition.RETAKE,
    Reason.OUT_OF_DISTRIBUTION: Disposition.REFER,
    Reason.OOD_UNKNOWN: Disposition.REFER,
    Reason.MALIGNANT_GROUP: Disposition.URGENT,
    Reason.HIGH_ENTROPY: Disposition.REFER,
    Reason.TRAJECTORIES_DISAGREE: Disposition.REFER,
    Reason.TRAJECTORIES_UNKNOWN: Disposition.REFER,
}
"""What each reason suggests on its own."""


@dataclass(frozen=True)
class Decision:
    """What a policy says of one picture: its reasons in the order of the rules.

    reasons is empty exactly where the disposition is routine.
    """

    disposition: Disposition
    reasons: tuple[Reason, ...]
    policy_version: int
    policy_hash: str


class Policy(Settings):
    """All of a policy file. version: raised with each change of its contents."""

    format_version: Literal[1]
    version: PositiveInt
    quality: QualityRules
    malignant: MalignantRules
    uncertainty: UncertaintyRules
    evidence: Evidence | None = None

    @property
    def hash(self) -> str:
        """SHA-256 of the contents as canonical JSON; comments and layout do not count."""
        content = json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        )
        return "sha256:" + hashlib.sha256(content.encode()).hexdigest()

    def decide(self, prediction: Prediction, quality: ImageQuality) -> Decision:
        """What to do next. Raises PolicyError where the model lacks a malignant class."""
        reasons = (*self._quality_reasons(quality), *self._prediction_reasons(prediction))
        return Decision(disposition(reasons), reasons, self.version, self.hash)

    def malignant_probability(self, prediction: Prediction) -> float:
        """Summed probability of the malignant group. Raises PolicyError for a missing class."""
        missing = [name for name in self.malignant.classes if name not in prediction.probabilities]
        if missing:
            raise PolicyError(
                f"the policy's malignant group needs the classes {', '.join(missing)}; the model "
                f"{prediction.model} has {', '.join(prediction.probabilities)}"
            )
        return math.fsum(prediction.probabilities[name] for name in self.malignant.classes)

    def fitted_to(self, prediction: Prediction) -> bool:
        """Whether the urgent threshold was set for this model, revision, mode and samples.

        Never for samples that were "auto": it is set for fixed numbers of them.
        """
        found = self.evidence
        return (
            found is not None
            and prediction.standard_error is None
            and (
                (found.revision, found.mode, found.samples)
                == (prediction.revision, prediction.mode, prediction.samples or 1)
            )
        )

    def _quality_reasons(self, found: ImageQuality) -> Iterator[Reason]:
        rules = self.quality
        if min(found.width, found.height) <= rules.too_small_px:
            yield Reason.TOO_SMALL
        if found.brightness <= rules.too_dark or found.dark_share >= rules.too_dark_share:
            yield Reason.TOO_DARK
        if found.brightness >= rules.too_bright or found.bright_share >= rules.too_bright_share:
            yield Reason.TOO_BRIGHT
        if found.sharpness <= rules.blurred:
            yield Reason.BLURRED

    def _prediction_reasons(self, found: Prediction) -> Iterator[Reason]:
        if found.ood is None:
            yield Reason.OOD_UNKNOWN
        elif found.ood:
            yield Reason.OUT_OF_DISTRIBUTION
        if self.malignant_probability(found) >= self.malignant.urgent:
            yield Reason.MALIGNANT_GROUP
        if found.entropy >= self.uncertainty.entropy_nats:
            yield Reason.HIGH_ENTROPY
        if len(set(found.trajectory_labels)) > 1:
            yield Reason.TRAJECTORIES_DISAGREE
        elif found.trajectories > 1 and not found.trajectory_labels:
            yield Reason.TRAJECTORIES_UNKNOWN


def disposition(reasons: Sequence[Reason]) -> Disposition:
    """What reasons suggest together: retake before all else, then the most severe of them.

    The rules' order and the one rule over it come to just this.
    """
    suggested = {SUGGESTS[reason] for reason in reasons}
    if Disposition.RETAKE in suggested:
        return Disposition.RETAKE
    return max(suggested, key=urgency, default=Disposition.ROUTINE)


def default_policy() -> Policy:
    """The policy that comes with the package."""
    return parse_policy(default_policy_text(), DEFAULT)


def default_policy_text() -> str:
    """The packaged policy file as it is written."""
    return files("eulerlora_client.policy").joinpath(DEFAULT).read_text(encoding="utf-8")


def read_policy(path: Path) -> Policy:
    """The policy in a file. Raises SettingsError, which names the file and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: wanted TOML in UTF-8 ({error})") from error
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str) -> Policy:
    """The policy in a TOML text that errors call `name`. Raises SettingsError."""
    try:
        return validated(Policy, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, SettingsError) as error:
        raise SettingsError(f"{name}: {error}") from error
