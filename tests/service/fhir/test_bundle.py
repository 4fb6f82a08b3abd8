"""The FHIR answer of /triage, checked with the independent models of fhir.resources."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from eulerlora.model import EulerLoRA
from eulerlora_client.contract.answers import TriageResult
from eulerlora_client.policy.policy import default_policy
from eulerlora_client.policy.results import WARNING
from service.app import Options, create_service
from service.fhir import triage_bundle
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings

bundles = pytest.importorskip("fhir.resources.R4B.bundle")

PNG = {"Content-Type": "image/png"}
FHIR = {**PNG, "Accept": "application/fhir+json", "X-Request-ID": "the-id"}
AI_ASSERTED = ("http://terminology.hl7.org/CodeSystem/v3-ObservationValue", "AIAST")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def triage_app(model: EulerLoRA, settings: ServiceSettings) -> FastAPI:
    """Returns a service whose policy has one malignant class of the model."""
    packaged = default_policy()
    malignant = packaged.malignant.model_copy(update={"classes": ("mel",), "urgent": 1e-9})
    options = Options(policy=packaged.model_copy(update={"malignant": malignant}))
    models = ServedModels([ServedModel.of(model)])
    return create_service(models, settings, Lifecycle(), options).application


@pytest.fixture(scope="module")
def triage(model) -> Iterator[TestClient]:
    with TestClient(triage_app(model, ServiceSettings(deadline_s=120))) as client:
        yield client


@pytest.fixture(scope="module")
def answer(triage, png) -> dict[str, Any]:
    """The JSON answer."""
    body: dict[str, Any] = triage.post("/triage?seed=1", content=png, headers=PNG).json()
    return body


def entries(bundle: Any) -> dict[str, Any]:
    return {entry.resource.get_resource_type(): entry for entry in bundle.entry}


def component(observation: Any, code: str) -> Any:
    (found,) = (one for one in observation.component if one.code.coding[0].code == code)
    return found


def test_the_answer_is_a_valid_bundle_with_the_numbers_of_the_json_answer(
    triage, answer, png
) -> None:
    response = triage.post("/triage?seed=1", content=png, headers=FHIR)
    assert (response.status_code, response.headers["Content-Type"]) == (
        200,
        "application/fhir+json",
    )
    assert response.headers["Cache-Control"] == "no-store"
    bundle = bundles.Bundle.model_validate_json(response.content)
    assert bundle.type == "collection"
    assert bundle.identifier.value == "the-id"
    observation = entries(bundle)["Observation"].resource
    prediction = answer["prediction"]
    for name, probability in prediction["probabilities"].items():
        assert float(component(observation, name).valueQuantity.value) == probability
    for name in ("msp", "entropy", "expected_entropy", "mutual_information"):
        assert float(component(observation, name).valueQuantity.value) == prediction[name]
    malignant = component(observation, "malignant").valueQuantity
    assert float(malignant.value) == answer["malignant"]["probability"]
    assert observation.valueCodeableConcept.coding[0].code == answer["disposition"]
    assert observation.valueCodeableConcept.text == answer["pathway"]
    assert {reason["words"] for reason in answer["reasons"]} <= {
        note.text for note in observation.note
    }


def test_the_observation_is_preliminary_and_labelled_as_asserted_by_ai(answer) -> None:
    result = TriageResult.model_validate(answer)
    bundle = bundles.Bundle.model_validate(triage_bundle(result, AT))
    found = entries(bundle)
    observation = found["Observation"].resource
    assert (observation.status, observation.subject) == ("preliminary", None)
    assert WARNING in [note.text for note in observation.note]
    for resource in (bundle, observation, found["Provenance"].resource):
        (label,) = resource.meta.security
        assert (label.system, label.code) == AI_ASSERTED


def test_the_references_lead_to_resources_of_the_bundle(answer) -> None:
    result = TriageResult.model_validate(answer)
    bundle = bundles.Bundle.model_validate(triage_bundle(result, AT))
    found = entries(bundle)
    device, observed = found["Device"].fullUrl, found["Observation"].fullUrl
    provenance = found["Provenance"].resource
    assert found["Observation"].resource.device.reference == device
    assert provenance.target[0].reference == observed
    assert provenance.agent[0].who.reference == device
    assert provenance.recorded == bundle.timestamp == AT
    assert provenance.policy == [f"urn:eulerlora:policy:{result.policy.hash}"]
    assert found["Device"].resource.version[0].value == result.prediction.revision
    assert triage_bundle(result, AT) == triage_bundle(result, AT)


@pytest.mark.parametrize("flag", [None, True, False])
def test_an_unknown_flag_has_a_reason_instead_of_a_value(answer, flag) -> None:
    result = TriageResult.model_validate(answer)
    prediction = result.prediction.model_copy(update={"ood": flag})
    changed = result.model_copy(update={"prediction": prediction})
    bundle = bundles.Bundle.model_validate(triage_bundle(changed, AT))
    found = component(entries(bundle)["Observation"].resource, "ood")
    assert found.valueBoolean is flag
    assert (found.dataAbsentReason is not None) == (flag is None)


def test_an_item_of_a_batch_has_its_own_identifier(answer) -> None:
    result = TriageResult.model_validate({**answer, "item_id": "a:1", "index": 1})
    bundle = triage_bundle(result, AT)
    assert bundle["identifier"]["value"] == "a:1"
    json.dumps(bundle)


def test_other_types_are_refused_before_the_body_is_read(triage, png) -> None:
    response = triage.post("/triage", content=png, headers={**PNG, "Accept": "text/html"})
    assert (response.status_code, response.json()["code"]) == (406, "not_acceptable")
    broken = triage.post("/triage", content=png[:100], headers=FHIR)
    assert broken.headers["Content-Type"] == "application/problem+json"
