"""`--shadow`: what is compared, and that answers do not depend on it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import Checkpoint
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_contract.checkpoints import ClassName
from service.inference.engine import ServedModel
from tests.conftest import MARGINS, THRESHOLDS
from tests.server_process import END_S, wait_until

NAMES = ("bkl", "mel", "nv", "bcc", "akiec")
PNG = {"Content-Type": "image/png"}
TRIAGE = "/triage?mode=det"
PACKAGED = default_policy()
URGENT = PACKAGED.model_copy(
    update={
        "quality": PACKAGED.quality.model_copy(update={"too_small_px": 0, "blurred": 0.0}),
        "target": PACKAGED.target.model_copy(update={"routine": 0.5, "urgent": 0.5}),
    }
)


@pytest.fixture(scope="module")
def checkpoint(make_network, make_config) -> Checkpoint:
    network = make_network(classes=len(NAMES))
    with torch.no_grad():
        network.heads.bias[..., NAMES.index("mel")] += 10
    names = tuple(ClassName(name=name, description=name) for name in NAMES)
    config = make_config(network, classes=names, thresholds=THRESHOLDS, margins=MARGINS)
    return Checkpoint(network, config, "sha256:served")


@pytest.fixture(scope="module")
def harmless(make_network, checkpoint) -> Checkpoint:
    """Another checkpoint, which answers `nv`."""
    network = make_network(classes=len(NAMES))
    with torch.no_grad():
        network.heads.bias[..., NAMES.index("nv")] += 10
    return replace(checkpoint, network=network, revision="sha256:shadow")


def model_of(checkpoint: Checkpoint) -> EulerLoRA:
    return EulerLoRA(checkpoint, torch.device("cpu"))


def answers(served: Checkpoint, shadow: Checkpoint | None, png: bytes) -> Any:
    """The answers of both routes, the outcomes of the comparisons, and their results by field."""
    shadowed = None if shadow is None else ServedModel(model_of(shadow))
    app = app_of(model_of(served), shadow=shadowed, policy=URGENT)
    registry = app.state.metrics.registry
    with TestClient(app) as client:
        bodies = [
            client.post(path, content=png, headers=PNG | {"X-Request-ID": "one"}).json()
            for path in ("/predict?mode=stoch&seed=3", "/predict?mode=stoch&samples=auto", TRIAGE)
        ]

        def outcomes() -> dict[str, float]:
            return counts(registry, "eulerlora_shadow_answers_total", "outcome")

        wait_until(lambda: shadow is None or sum(outcomes().values()) == 3, END_S)
        return (
            bodies,
            outcomes(),
            counts(registry, "eulerlora_shadow_fields_total", "field", "result"),
        )


def counts(registry: Any, name: str, *labels: str) -> dict[Any, float]:
    return {
        " ".join(sample.labels[label] for label in labels): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_an_equal_shadow_agrees_in_every_field(checkpoint, png) -> None:
    _, outcomes, fields = answers(checkpoint, checkpoint, png)
    assert outcomes == {"compared": 3}
    # no threshold for samples=auto
    assert fields == {"label same": 3, "ood same": 2, "disposition same": 1}


def test_another_shadow_is_counted_and_changes_no_answer(checkpoint, harmless, png) -> None:
    alone, none, _ = answers(checkpoint, None, png)
    bodies, outcomes, fields = answers(checkpoint, harmless, png)
    assert (bodies, none) == (alone, {})
    assert bodies[2]["disposition"] == "urgent"
    assert outcomes == {"compared": 3}
    assert fields["label different"] == 3
    assert fields["disposition less_urgent"] == 1


def test_a_shadow_without_the_classes_of_the_policy_fails_for_triage_alone(
    checkpoint, make_network, make_config, png
) -> None:
    network = make_network()
    config = make_config(network, thresholds=THRESHOLDS, margins=MARGINS)
    other = Checkpoint(network, config, "sha256:three")
    bodies, outcomes, _ = answers(checkpoint, other, png)
    assert bodies[2]["disposition"] == "urgent"
    assert outcomes == {"compared": 2, "failed": 1}
