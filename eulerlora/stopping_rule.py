"""When the rounds of one image end, for a checkpoint with fitted margins."""

from collections.abc import Callable
from dataclasses import dataclass

from eulerlora.calibration_schema import DecisionMargins
from eulerlora.config import CheckpointConfig
from eulerlora.errors import SettingsError
from eulerlora.round_answer import RoundAnswer, SettledDecisions
from eulerlora.settings import Sampler

PolicyIsSettled = Callable[[SettledDecisions], bool]


@dataclass(frozen=True)
class StoppingRule:
    """What must be settled: the label, the flags, the entropy, and the decision of a policy.

    msp, feature_distance: thresholds of the flags; None if there is no flag. margins: None for a
    checkpoint without them; `samples="auto"` then ends by standard errors, and without the policy.
    policy: True if the decision of a policy is settled.
    """

    msp: float | None = None
    feature_distance: float | None = None
    margins: DecisionMargins | None = None
    policy: PolicyIsSettled | None = None

    def ends(self, answer: RoundAnswer) -> bool:
        """True if no more samples are needed; False for a round without margins."""
        margins = None if self.margins is None else self.margins.of_round(answer.samples)
        if margins is None:
            return False
        settled = SettledDecisions(answer, margins)
        known = [
            threshold is None or reaches(threshold) is not None
            for threshold, reaches in (
                (self.msp, settled.msp_reaches),
                (self.feature_distance, settled.distance_reaches),
            )
        ]
        decided = self.policy is None or self.policy(settled)
        return settled.label_is_settled and settled.entropy_is_settled and all(known) and decided


def stopping_rule(config: CheckpointConfig, sampler: Sampler | None = None) -> StoppingRule:
    """Returns the rule of a checkpoint without a policy. sampler: None for the checkpoint's."""
    threshold = config.convergence_threshold(sampler)
    if threshold is None:
        return StoppingRule(margins=config.margins_for(sampler))
    distance = threshold.feature_distance
    return StoppingRule(
        msp=threshold.msp,
        feature_distance=None if distance is None else distance.threshold,
        margins=config.margins_for(sampler),
    )


def check_adaptive(config: CheckpointConfig, sampler: Sampler | None = None) -> None:
    """Raises SettingsError if the checkpoint has no margins for mode adaptive."""
    if config.margins_for(sampler) is None:
        raise SettingsError(
            "mode adaptive: expected a checkpoint with decision margins for its sampler, got none; "
            "`eulerlora calibrate` fits them"
        )
