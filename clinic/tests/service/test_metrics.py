"""Metrics of dispositions, decisions and the shift monitors."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from clinic.tests.audit_entries import SECRET
from clinic.tests.runs import mel_policy
from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from eulerlora_clinic.audit.log import AuditLog
from eulerlora_contract.answers import Disposition
from eulerlora_contract.problems import SENT_BY_SERVICE
from service.telemetry.metrics import Metrics
from tests.service.observed import GAUGES, count_everything

ROOT = Path(__file__).parents[3]


@pytest.fixture
def client(model, tmp_path: Path) -> Iterator[TestClient]:
    """A client of a service that records decisions."""
    audit = AuditLog(tmp_path / "audit.jsonl", SECRET)
    with TestClient(app_of(model, policy=mel_policy(), audit=audit)) as client:
        yield client


def families(client: TestClient) -> list[Metric]:
    """Without the times at which counters were created, which are gauges in this format."""
    sent = text_string_to_metric_families(client.get("/metrics").text)
    return [family for family in sent if not family.name.endswith("_created")]


def values(client: TestClient, name: str) -> dict[str, float]:
    """The values of the model's metric with this name by its only other label."""
    samples = (sample for family in families(client) for sample in family.samples)
    return {
        text: sample.value
        for sample in samples
        if sample.name == f"eulerlora_{name}"
        for label, text in sample.labels.items()
        if label != "model"
    }


def triage(client: TestClient, png: bytes, number: int) -> str:
    """The disposition of a picture with its own seed."""
    headers = {"Content-Type": "image/png"}
    answer = client.post("/triage", params={"seed": number}, content=png, headers=headers)
    return str(answer.json()["disposition"])


def test_decisions_and_diagnoses_of_a_model_are_counted_from_zero(client) -> None:
    assert values(client, "decisions_total") == {"accept": 0, "override": 0, "undo": 0}
    (diagnoses,) = (family for family in families(client) if "diagnoses" in family.name)
    counts = {tuple(sorted(s.labels.values())): s.value for s in diagnoses.samples}
    kinds = product(("true", "false"), Disposition, ["tiny"])
    assert counts == {tuple(sorted(labels)): 0 for labels in kinds}


def test_dispositions_are_counted(client, png: bytes) -> None:
    assert values(client, "dispositions_total") == {}
    given = Counter(triage(client, png, number) for number in range(3))
    assert values(client, "dispositions_total") == given


def test_the_shift_metrics_have_the_state_of_each_signal(flags_all: Path, png: bytes) -> None:
    model, policy = EulerLoRA.load(flags_all, "cpu"), mel_policy()
    four = replace(policy.evidence[0].options, samples=4)  # with a threshold
    evidence = policy.evidence[0].model_copy(update={"options": four})
    policy = policy.model_copy(update={"evidence": (evidence,)})
    with TestClient(app_of(model, policy=policy)) as client:
        for number in range(32):
            triage(client, png, number)
        (signal,) = client.get("/models/tiny").json()["shift"]["signals"]
        assert values(client, "shift_pictures_total") == {"msp": 32}
        assert values(client, "shift_evidence") == {"msp": pytest.approx(signal["evidence"])}
        assert values(client, "shift_alarm") == {"msp": 1}


@pytest.fixture
def counted(client, png: bytes) -> list[Metric]:
    """The metrics of the core, and those of the clinic after a disposition."""
    triage(client, png, 0)
    core = Metrics(lambda: GAUGES)
    count_everything(core)
    known = list(core.registry.collect())
    names = {sample.name for family in known for sample in family.samples}
    sent = (family for family in families(client) if family.samples)
    others = [family for family in sent if family.samples[0].name not in names]
    return [*known, *others]


def test_the_documentation_lists_exactly_these_metrics(counted) -> None:
    written = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert [line for line in written.splitlines() if line.startswith("| `")] == table(counted)


def test_every_metric_and_reason_in_an_alert_exists(counted) -> None:
    names = {sample.name for family in counted for sample in family.samples}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert {"alert", "expr", "labels", "annotations"} <= set.intersection(*map(set, alerts))
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    codes = {problem.code for problem in SENT_BY_SERVICE}
    for rule in alerts:
        used = set(re.findall(r"\b(?:eulerlora|process)_\w+|\bup\b", rule["expr"]))
        assert used and used <= names | {"up"}, rule["alert"]  # Prometheus adds up
        for reasons in re.findall(r'reason=~?"([^"]+)"', rule["expr"]):
            assert set(reasons.split("|")) <= codes, rule["alert"]


def table(families: Iterable[Metric]) -> list[str]:
    """The lines of the table in the documentation, sorted by name."""
    lines = []
    for family in families:
        if not family.name.startswith("eulerlora_"):
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        shown = ", ".join(f"`{label}`" for label in sorted(labels))
        lines.append(
            f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |"
        )
    return sorted(lines)
