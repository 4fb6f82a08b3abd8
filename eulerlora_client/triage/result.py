"""Rows of a triage run, and the answers of `/triage` and `/triage/policy` from decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eulerlora_client.contract.predictions import Prediction
from eulerlora_client.contract.triage import (
    DispositionText,
    ImageQuality,
    MalignantGroup,
    PolicyDescription,
    PolicyPerformance,
    PolicyReference,
    TriageReason,
    TriageResult,
)
from eulerlora_client.policy.evidence import Evidence, default_sampling
from eulerlora_client.policy.policy import Decision, Policy
from eulerlora_client.policy.urgency import BY_URGENCY, FAILED
from eulerlora_client.policy.wording import (
    NOT_FITTED,
    PATHWAYS,
    REASONS,
    TITLES,
    WARNING,
    pathway,
)


@dataclass(frozen=True)
class RowProblem:
    """Why a file has no result: a code for programs, and a text for people."""

    code: str
    detail: str


@dataclass(frozen=True)
class TriageRow:
    """The outcome for one file: the result, or the problem that prevented it."""

    path: Path
    result: TriageResult | None = None
    problem: RowProblem | None = None


def triage_result(
    prediction: Prediction,
    quality: ImageQuality,
    decision: Decision,
    policy: Policy,
    class_names: Mapping[str, str],
) -> TriageResult:
    """Returns the answer for one image that `policy` has decided on.

    class_names: the name of every class for people, by its code.
    """
    fitted = policy.fitted_to(prediction)
    item = prediction.model_dump(include={"index", "item_id"}, exclude_unset=True)
    return TriageResult(
        disposition=decision.disposition,
        title=TITLES[decision.disposition],
        pathway=pathway(decision),
        reasons=tuple(TriageReason(code=code, words=REASONS[code]) for code in decision.reasons),
        warning=WARNING,
        policy=PolicyReference(
            version=decision.policy_version,
            hash=decision.policy_hash,
            notice=None if fitted else NOT_FITTED,
            measured=measured_performance(policy.evidence) if fitted else (),
        ),
        malignant=MalignantGroup(
            classes=policy.malignant.classes,
            probability=policy.malignant_probability(prediction),
            urgent=policy.malignant.urgent,
        ),
        quality=quality,
        prediction=prediction,
        class_names=dict(class_names),
        **item,
    )


def decided(result: TriageResult, policy: Policy) -> TriageResult:
    """Returns the answer with the decision of another policy. Raises as `Policy.decide`."""
    decision = policy.decide(result.prediction, result.quality)
    return triage_result(result.prediction, result.quality, decision, policy, result.class_names)


def measured_performance(evidence: Evidence | None) -> tuple[PolicyPerformance, ...]:
    """Returns the performance of a policy on each data set; () if it was not measured."""
    if evidence is None:
        return ()
    return tuple(
        PolicyPerformance(
            data=measured.data,
            target=evidence.target,
            sensitivity=measured.target.sensitivity,
            sensitivity_low=measured.target.sensitivity_low,
            sensitivity_high=measured.target.sensitivity_high,
            specificity=measured.others.specificity,
            specificity_low=measured.others.specificity_low,
            specificity_high=measured.others.specificity_high,
        )
        for measured in evidence.measured
    )


def policy_description(policy: Policy) -> PolicyDescription:
    """Returns the answer of `/triage/policy`."""
    sampling = default_sampling(policy.evidence)
    assert sampling.samples != "auto", "a threshold is set for a number of samples"
    return PolicyDescription(
        version=policy.version,
        hash=policy.hash,
        mode=sampling.mode,
        samples=sampling.samples,
        policy=policy.model_dump(mode="json"),
        dispositions=tuple(
            DispositionText(
                disposition=disposition, title=TITLES[disposition], pathway=PATHWAYS[disposition]
            )
            for disposition in reversed(BY_URGENCY)
            if disposition != FAILED
        ),
        warning=WARNING,
    )
