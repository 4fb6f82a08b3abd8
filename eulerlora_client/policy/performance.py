"""The measured performance of a policy as tables: on the page, in reports, cards and README."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from eulerlora_client.policy.evidence import Evidence, MeasuredEvidence
from eulerlora_client.policy.policy import Policy

NAMES = {"mel": "melanoma"}
"""Words for the class whose sensitivity a policy promises; other classes keep their names."""

UNKNOWN = "The sensitivity and specificity of this policy have not been measured."

EXPLANATION = (
    "All figures count lesions; brackets contain exact 95% intervals. A malignant lesion counts as "
    "seen if every image of it is urgent or unfamiliar; unfamiliar means that the model says "
    "nothing about the image and a person has to look at it. Specificity is the share of the other "
    "lesions without any urgent or unfamiliar image. Image quality is not considered."
)

DETAIL_HEADER = ("lesions", "number", "urgent", "unfamiliar", "neither", "threshold alone")

DETAIL_NOTE = (
    "A malignant lesion that is neither is missed; any other lesion that is neither is spared. "
    "Threshold alone ignores whether images are unfamiliar: the share of malignant lesions with a "
    "malignant probability at or above the threshold in all images (sensitivity), or of other "
    "lesions without an image that reaches it (specificity)."
)


@dataclass(frozen=True)
class Table:
    """Cells of a table. header: one for each column; rows: the first cell names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def markdown(self) -> str:
        """The table in Markdown, numbers on the right."""
        lines = [self.header, ["---", *["---:"] * (len(self.header) - 1)], *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class Performance:
    """The performance of a policy on several data sets.

    origin: what was measured. summary: one row for each data set. details: several rows for each.
    """

    origin: str
    summary: Table
    details: Table

    @property
    def markdown(self) -> str:
        """Sentences and both tables in Markdown."""
        parts = (self.origin, self.summary.markdown, EXPLANATION, self.details.markdown)
        return "\n\n".join([*parts, DETAIL_NOTE])


def performance(policy: Policy, names: Mapping[str, str] | None = None) -> Performance | None:
    """Returns the performance of a policy's thresholds; None if it was not measured.

    names: of classes for people, by their codes; other classes keep their codes.
    """
    evidence = policy.evidence
    if evidence is None or not evidence.measured:
        return None
    return Performance(
        f"Policy version {policy.version}: {', '.join(policy.malignant.classes)} together from a "
        f"probability of {policy.malignant.urgent}, {evidence.model} in mode {evidence.mode} with "
        f"{evidence.samples} sample{'s' if evidence.samples > 1 else ''} "
        f"(revision {evidence.revision}).",
        _summary(evidence, names or {}, policy),
        Table(
            DETAIL_HEADER,
            [row for one in evidence.measured for row in _detail_rows(evidence, one, policy)],
        ),
    )


def _group(policy: Policy, names: Mapping[str, str]) -> str:
    *first, last = (names.get(code, code) for code in policy.malignant.classes)
    return f"{', '.join(first)} or {last}" if first else last


def _summary(evidence: Evidence, names: Mapping[str, str], policy: Policy) -> Table:
    target = {**NAMES, **names}.get(evidence.target, evidence.target)
    group = _group(policy, names)
    header = ("images", f"sensitivity, {target}", f"sensitivity, {group}", "specificity")
    rows = [
        (
            one.data,
            *(
                f"{interval(counts.sensitivity, counts.sensitivity_low, counts.sensitivity_high)} "
                f"({counts.lesions - counts.neither:,}/{counts.lesions:,}, of these "
                f"{counts.unfamiliar:,} only as unfamiliar)"
                for counts in (one.target, one.malignant)
            ),
            f"{_specificity(one)} ({one.others.neither:,}/{one.others.lesions:,})",
        )
        for one in evidence.measured
    ]
    return Table(header, rows)


def _detail_rows(evidence: Evidence, one: MeasuredEvidence, policy: Policy) -> Iterator[list[str]]:
    named = [(evidence.target, one.target), (_group(policy, {}), one.malignant)]
    if one.other_malignant is not None:
        labels = ", ".join(one.other_malignant.labels)
        named.append((f"{labels}, malignant without a class", one.other_malignant))
    for name, counts in named:
        alone = counts.reached / counts.lesions
        yield [
            f"{one.data}: {name}",
            *(f"{n:,}" for n in (counts.lesions, counts.urgent, counts.unfamiliar, counts.neither)),
            f"{alone:.3f}",
        ]
    others = one.others
    yield [
        f"{one.data}: other lesions",
        *(f"{n:,}" for n in (others.lesions, others.urgent, others.unfamiliar, others.neither)),
        f"{1 - others.reached / others.lesions:.3f}",
    ]


def _specificity(one: MeasuredEvidence) -> str:
    others = one.others
    return interval(others.specificity, others.specificity_low, others.specificity_high)


def interval(share: float, low: float, high: float) -> str:
    """Returns a share with its interval, such as "0.561 [0.533, 0.589]"."""
    return f"{share:.3f} [{low:.3f}, {high:.3f}]"
