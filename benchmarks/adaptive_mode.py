"""`samples=auto` and mode adaptive against fixed samples: `python -m benchmarks.adaptive_mode`.

Prints for each the mean number of rows of an answer, how often label, OOD flag and disposition of
the packaged policy differ from those of 16 samples with the same seed, the differences of
probabilities and entropy, and how often MSP and entropy plus and minus two stated errors contain
the values of 16 other samples. Image quality is not considered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import torch
from torch import Tensor

from eulerlora.checkpoint.config import CheckpointConfig, check_adaptive, stopping_rule
from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.model import EulerLoRA
from eulerlora.sampling.adaptive import (
    INTERVAL_ERRORS,
    MAX_SAMPLES,
    ROUNDS,
    RoundAnswer,
    standard_errors,
)
from eulerlora.sampling.decision_margins import DET_ROUND, MARGIN_ROUNDS, RoundAnswers, last_rounds
from eulerlora.scores.ood_scores import Threshold
from eulerlora.settings import ADAPTIVE, AUTO, RequestMode
from eulerlora_client.contract.answers import Disposition, ImageQuality, Reason
from eulerlora_client.policy.policy import Policy, default_policy, disposition_for
from service.prediction.request import FlagLimits, disposition_is_settled
from training.calibration.outputs import CalibrationOutputs
from training.data.datasets import checkpoint_dataset
from training.data.images import evenly_spaced
from training.evaluation.inference import SamplingOptions, predict_all
from training.reporting.tables import table

GOOD = ImageQuality(
    width=600, height=450, brightness=0.6, dark_share=0, bright_share=0, sharpness=100
)
HEAD = [
    "", "rows", "sampled", "label", "OOD flag", "disposition", "all three", "probability, RMS",
    "probability, largest", "entropy, RMS", "MSP covered", "entropy covered",
]  # fmt: skip


@dataclass(frozen=True)
class Decisions:
    """What an answer leads to."""

    label: int
    flagged: bool
    disposition: Disposition


@dataclass(frozen=True)
class Measured:
    """The outputs for n images with twice `MAX_SAMPLES` samples, and the answers of their rounds.

    The later samples are the reference of the coverage.
    """

    config: CheckpointConfig
    policy: Policy
    trajectories: Tensor
    answers: RoundAnswers

    def decisions(self, answer: RoundAnswer, thresholds: Threshold) -> Decisions:
        """Returns the decisions on an answer. thresholds: of its mode and samples."""
        names = [label.name for label in self.config.classes]
        malignant = sum(answer.probabilities[names.index(n)] for n in self.policy.malignant.classes)
        limit = thresholds.feature_distance
        flagged = answer.msp < thresholds.msp
        reasons = {
            Reason.OUT_OF_DISTRIBUTION: flagged,
            Reason.UNFAMILIAR: limit is not None
            and answer.distance is not None
            and answer.distance > limit.threshold,
            Reason.MALIGNANT_GROUP: malignant >= self.policy.malignant.urgent,
            Reason.HIGH_ENTROPY: answer.entropy >= self.policy.uncertainty.entropy_nats,
            Reason.TRAJECTORIES_DISAGREE: answer.agreement < 0,
        }
        disposition = disposition_for([reason for reason, applies in reasons.items() if applies])
        return Decisions(answer.label, flagged, disposition)

    def row(self, name: str, ends: Sequence[int], mode: RequestMode, extra: int) -> list[str]:
        """Returns a row of the table. ends: last round of each image; extra: passes before."""
        adapters = self.trajectories.shape[1]
        chosen = [self.answers[end][index] for index, end in enumerate(ends)]
        pairs = list(zip(chosen, self.answers[MAX_SAMPLES], strict=True))
        same = torch.tensor(
            [
                [getattr(one, field) == getattr(other, field)
                 for field in ("label", "flagged", "disposition")]
                for one, other in (
                    (self.decisions(first, self._thresholds(mode, end)),
                     self.decisions(last, self._thresholds("stoch", MAX_SAMPLES)))
                    for (first, last), end in zip(pairs, ends, strict=True)
                )
            ]
        )  # fmt: skip
        difference = torch.tensor([one.probabilities for one, _ in pairs]).double()
        difference -= torch.tensor([last.probabilities for _, last in pairs]).double()
        entropy = torch.tensor([one.entropy - last.entropy for one, last in pairs])
        rows = [adapters * (max(end, 1) + extra * (end != DET_ROUND)) for end in ends]
        shares = torch.cat([same.double().mean(dim=0), same.all(dim=1).double().mean()[None]])
        return [
            name, f"{sum(rows) / len(rows):.2f}",
            f"{sum(end != DET_ROUND for end in ends) / len(ends):.1%}",
            *(f"{share:.2%}" for share in shares.tolist()),
            f"{difference.square().mean().sqrt():.4f}", f"{difference.abs().max():.3f}",
            f"{entropy.square().mean().sqrt():.4f}", *self._coverage(ends),
        ]  # fmt: skip

    def _thresholds(self, mode: RequestMode, end: int) -> Threshold:
        samples = AUTO if mode == ADAPTIVE else max(end, 1)
        found = self.config.threshold(mode, samples) or self.config.threshold("stoch", MAX_SAMPLES)
        assert found is not None
        return found

    def _coverage(self, ends: Sequence[int]) -> list[str]:
        """Returns the shares of the sampled answers whose MSP and entropy are covered."""
        covered = []
        for index, end in enumerate(ends):
            if end < ROUNDS[0]:
                continue
            errors = standard_errors(self.trajectories[index, :, :end])
            answer = self.answers[end][index]
            reference = self.trajectories[index, :, MAX_SAMPLES:].mean(dim=(0, 1))
            entropy = float(torch.special.entr(reference).sum())
            covered.append([
                abs(answer.msp - float(reference[answer.label])) <= INTERVAL_ERRORS * errors.msp,
                abs(answer.entropy - entropy) <= INTERVAL_ERRORS * errors.entropy,
            ])  # fmt: skip
        if not covered:
            return ["", ""]
        return [f"{share:.1%}" for share in torch.tensor(covered).double().mean(dim=0).tolist()]


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoint", type=click.Path(path_type=Path), default=DEFAULT_CHECKPOINT)
@click.option("--part", type=click.Choice(["calibration", "test"]), default="test")
@click.option("--images", type=click.IntRange(2), default=200, show_default=True)
@click.option("--device", default="auto", show_default=True)
def main(data: Path, checkpoint: Path, part: str, images: int, device: str) -> None:
    """Compare samples=auto and mode adaptive with fixed samples."""
    model = EulerLoRA.load(checkpoint, device)
    check_adaptive(model.config)
    used = evenly_spaced(checkpoint_dataset(model.config, data).parts[part], images)
    options = [SamplingOptions("det"), SamplingOptions("stoch", 2 * MAX_SAMPLES)]
    det, stoch = predict_all(model, used, options, part)
    outputs = CalibrationOutputs(det, stoch, model.precision)
    policy = default_policy()
    answers = outputs.answers(model.feature_distance)
    measured = Measured(model.config, policy, outputs.stoch.log_probabilities.exp(), answers)
    click.echo(f"{model.config.name}, {model.revision}; {len(used)} images of the {part} part\n")
    click.echo(table(HEAD, rows_of(measured)))


def rows_of(measured: Measured) -> list[list[str]]:
    """Returns the rows of the table: mode det, fixed samples, auto and adaptive."""
    rule = stopping_rule(measured.config)
    classes = [label.name for label in measured.config.classes]
    limits = FlagLimits(rule.msp, rule.feature_distance)
    settled = partial(disposition_is_settled, measured.policy, GOOD, classes, limits)
    count = len(measured.answers[MAX_SAMPLES])
    rows = [measured.row("det", [DET_ROUND] * count, "det", 0)]
    rows += [measured.row(f"S = {end}", [end] * count, "stoch", 0) for end in ROUNDS]
    kinds: Mapping[str, tuple[Sequence[int], RequestMode, int]] = {
        "auto": (MARGIN_ROUNDS[1:], "stoch", 0),
        "adaptive": (MARGIN_ROUNDS, ADAPTIVE, 1),
    }
    for name, (rounds, mode, extra) in kinds.items():
        for suffix, used in (("", rule), (", with policy", replace(rule, policy=settled))):
            ends = last_rounds(measured.answers, used, rounds)
            rows.append(measured.row(name + suffix, ends, mode, extra))
    return rows


if __name__ == "__main__":
    main()
