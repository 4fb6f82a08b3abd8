"""The FHIR answer of /triage, checked with the independent models of fhir.resources.

Also the header Accept, and the script for Orthanc in the documentation.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from clinic.tests.service.conftest import app_of
from clinic.tests.service.test_dicom import dicom_file
from eulerlora import EulerLoRA
from eulerlora_clinic.policy.policy import default_policy
from eulerlora_clinic.policy.results import WARNING
from eulerlora_clinic.service.fhir import FHIR as FORMAT
from eulerlora_contract.answers import Reason, TriageResult
from service.inference.engine import ServedModel
from tests.markdown import code_blocks
from tests.service.real_server import run_server

bundles = pytest.importorskip("fhir.resources.R4B.bundle")

PNG = {"Content-Type": "image/png"}
JSON, FHIR_JSON = "application/json", "application/fhir+json"
FHIR = {**PNG, "Accept": FHIR_JSON, "X-Request-ID": "the-id"}
AI_ASSERTED = ("http://terminology.hl7.org/CodeSystem/v3-ObservationValue", "AIAST")
CARD = "# Tiny\n\nA model for tests, \N{MICRO SIGN}.\n"
GUIDE = "http://hl7.org/fhir/uv/aitransparency"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def triage_app(model: EulerLoRA, **settings: object) -> FastAPI:
    """A service whose policy has one malignant class of the model."""
    packaged = default_policy()
    target = packaged.target.model_copy(
        update={"classes": ("mel",), "routine": 1e-9, "urgent": 1e-9}
    )
    policy = packaged.model_copy(update={"target": target})
    return app_of(ServedModel(model, CARD), policy=policy, **settings)


@pytest.fixture(scope="module")
def triage(model) -> Iterator[TestClient]:
    with TestClient(triage_app(model)) as client:
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
    Draft202012Validator(FORMAT.schema).validate(response.json())
    bundle = bundles.Bundle.model_validate_json(response.content)
    assert bundle.type == "collection"
    assert bundle.identifier.value == "the-id"
    observation = entries(bundle)["Observation"].resource
    prediction = answer["prediction"]
    for name, probability in prediction["probabilities"].items():
        assert float(component(observation, name).valueQuantity.value) == probability
    for name in ("msp", "entropy", "expected_entropy", "mutual_information"):
        assert float(component(observation, name).valueQuantity.value) == prediction[name]
    malignant = component(observation, "target").valueQuantity
    assert float(malignant.value) == answer["target"]["probability"]
    assert observation.valueCodeableConcept.coding[0].code == answer["disposition"]
    assert observation.valueCodeableConcept.text == answer["pathway"]
    assert {reason["words"] for reason in answer["reasons"]} <= {
        note.text for note in observation.note
    }


def bundle_of(answer: dict[str, Any], card: str = CARD, **changes: object) -> Any:
    """The bundle of an answer, with changed fields of its prediction."""
    result = TriageResult.model_validate({**answer, "prediction": answer["prediction"] | changes})
    return bundles.Bundle.model_validate(FORMAT.render(result, card, AT))


def test_the_observation_is_preliminary_and_labelled_as_asserted_by_ai(answer) -> None:
    bundle = bundle_of(answer)
    found = entries(bundle)
    observation = found["Observation"].resource
    assert (observation.status, observation.subject) == ("preliminary", None)
    notice = answer["policy"]["notice"]
    assert notice is not None  # the policy was not fitted to this model
    assert {WARNING, notice} <= {note.text for note in observation.note}
    for resource in (bundle, observation, found["Provenance"].resource):
        (label,) = resource.meta.security
        assert (label.system, label.code) == AI_ASSERTED


def test_the_references_lead_to_resources_of_the_bundle(answer) -> None:
    bundle = bundle_of(answer)
    found = entries(bundle)
    device, observed = found["Device"].fullUrl, found["Observation"].fullUrl
    provenance = found["Provenance"].resource
    assert found["Observation"].resource.device.reference == device
    assert provenance.target[0].reference == observed
    assert provenance.agent[0].who.reference == device
    assert provenance.recorded == bundle.timestamp == AT
    assert provenance.policy == [f"urn:eulerlora:policy:{answer['policy']['hash']}"]
    assert found["Device"].resource.version[0].value == answer["prediction"]["revision"]
    assert bundle_of(answer) == bundle


def test_the_bundle_follows_the_guide_ai_transparency_on_fhir(answer) -> None:
    found = entries(bundle_of(answer))
    device, provenance = found["Device"].resource, found["Provenance"].resource
    card = found["DocumentReference"].resource
    for resource, name in ((device, "Device"), (provenance, "Provenance"), (card, "ModelCard")):
        assert resource.meta.profile == [f"{GUIDE}/StructureDefinition/AI-{name}|1.0.0-ballot"]
    assert codes(device.type) == [(f"{GUIDE}/CodeSystem/AIdeviceTypeCS", "Artificial-Intelligence")]
    extensions = {extension.url.rpartition(".")[2]: extension for extension in device.extension}
    assert codes(extensions["AIKind"].valueCodeableConcept)[0][1] == "Deep-Learning-Models"
    reference = extensions["modelCardDescription"].valueReference.reference
    assert reference == found["DocumentReference"].fullUrl
    assert [codes(reason) for reason in provenance.reason] == [[AI_ASSERTED]]
    assert codes(provenance.agent[0].type)[0][1] == "author"
    assert codes(card.type)[0][1] == "AIModelCard"
    (content,) = card.content
    assert content.attachment.contentType == "text/markdown"
    assert content.attachment.data.decode() == CARD  # decoded by the model


def codes(concept: Any) -> list[tuple[str, str]]:
    return [(coding.system, coding.code) for coding in concept.coding]


def test_a_model_without_a_card_has_no_document(answer) -> None:
    found = entries(bundle_of(answer, card=""))
    assert set(found) == {"Device", "Observation", "Provenance"}
    assert len(found["Device"].resource.extension) == 1


@pytest.mark.parametrize("flag", [None, False, True])
def test_an_unknown_flag_and_the_figures_of_an_unfamiliar_image_have_a_reason_instead_of_a_value(
    answer, flag
) -> None:
    observation = entries(bundle_of(answer, unfamiliar=flag))["Observation"].resource
    shown = component(observation, "unfamiliar")
    assert shown.valueBoolean is flag
    assert (shown.dataAbsentReason is not None) == (flag is None)
    figures = [one for one in observation.component if "flag" not in one.code.coding[0].system]
    assert {one.code.coding[0].code for one in figures} >= {"msp", "entropy", "mel"}
    for one in figures:
        assert (one.valueQuantity is None) == (flag is True)
        if flag:
            assert codes(one.dataAbsentReason)[0][1] == "not-applicable"


def test_the_notes_of_an_unfamiliar_image_have_no_reason_that_rests_on_a_figure(answer) -> None:
    words = {Reason.UNFAMILIAR: "far", Reason.HIGH_ENTROPY: "high"}
    reasons = [{"code": code, "words": text} for code, text in words.items()]
    for flag, expected in ((False, {"far", "high"}), (True, {"far"})):
        bundle = bundle_of({**answer, "reasons": reasons}, unfamiliar=flag)
        notes = {note.text for note in entries(bundle)["Observation"].resource.note}
        assert notes & {"far", "high"} == expected


def test_an_item_of_a_batch_has_its_own_identifier(answer) -> None:
    result = TriageResult.model_validate({**answer, "item_id": "a:1", "index": 1})
    bundle = FORMAT.render(result, CARD, AT)
    assert bundle["identifier"]["value"] == "a:1"
    json.dumps(bundle)


def test_other_types_are_refused_before_the_body_is_read(triage, png) -> None:
    response = triage.post("/triage", content=png, headers={**PNG, "Accept": "text/html"})
    assert (response.status_code, response.json()["code"]) == (406, "not_acceptable")
    broken = triage.post("/triage", content=png[:100], headers=FHIR)
    assert broken.headers["Content-Type"] == "application/problem+json"


def accepting(client: TestClient, image: bytes, accept: str | None) -> Any:
    """The response to a request with this header Accept, or without one."""
    request = client.build_request("POST", "/triage?seed=1", content=image, headers=PNG)
    if accept is None:
        del request.headers["Accept"]
    else:
        request.headers["Accept"] = accept
    return client.send(request)


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, JSON),
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("application/json", JSON),
        ("application/fhir+json", FHIR_JSON),
        ("Application/FHIR+JSON; fhirVersion=4.0", FHIR_JSON),
        ('application/fhir+json; fhirVersion="4.0"', FHIR_JSON),
        ("application/fhir+json, application/json", JSON),
        ("application/fhir+json, application/json;q=0.9", FHIR_JSON),
        ("application/fhir+json;q=0.5, */*;q=0.1", FHIR_JSON),
        ("application/json;q=0, */*", FHIR_JSON),
        ("application/fhir+json; fhirVersion=5.0, application/json;q=0.1", JSON),
        ("text/html, application/xml;q=0.9, */*;q=0.8", JSON),
        ("application/fhir+json;q=x, */*", JSON),
    ],
)
def test_the_preferred_type_is_chosen(triage, png, accept, chosen) -> None:
    response = accepting(triage, png, accept)
    assert (response.status_code, response.headers["Content-Type"]) == (200, chosen)


@pytest.mark.parametrize(
    "accept",
    [
        "application/fhir+xml",
        "text/html",
        "application/fhir+json; fhirVersion=5.0",
        "*/*;q=0",
        ";,;",
    ],
)
def test_a_header_without_a_type_of_the_service_is_refused(triage, png, accept) -> None:
    response = accepting(triage, png, accept)
    assert (response.status_code, response.json()["code"]) == (406, "not_acceptable")


RETRY = Message()
RETRY["Retry-After"] = "3"
PAGE = Path(__file__).parents[2] / "docs" / "reports.md"


def test_the_script_repeats_what_may_pass_stores_the_bundle_and_skips_what_is_no_picture(
    model, photo, monkeypatch
) -> None:
    (script,) = (
        block.code for block in code_blocks(PAGE.read_text()) if "import orthanc" in block.code
    )
    instances = {"picture": dicom_file(photo.tobytes()), "report": b"no picture"}
    stored: dict[str, bytes] = {}
    logged: list[str] = []
    callbacks = []
    orthanc = ModuleType("orthanc")
    vars(orthanc).update(
        ChangeType=SimpleNamespace(NEW_INSTANCE=1),
        GetDicomForInstance=instances.__getitem__,
        RestApiPut=stored.__setitem__,
        LogInfo=logged.append,
        RegisterOnChangeCallback=callbacks.append,
    )
    monkeypatch.setitem(sys.modules, "orthanc", orthanc)
    with run_server(triage_app(model, images={"dicom": True})) as port:
        monkeypatch.setenv("EULERLORA_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("EULERLORA_KEY", "unused")
        script_names: dict[str, Any] = {}
        exec(script, script_names)
        send, waits = script_names["urlopen"], list[float]()
        faults = [HTTPError("", 503, "", RETRY, None), URLError("refused"), TimeoutError()]

        def unsteady(*request: Any, **options: Any) -> Any:
            if faults:
                raise faults.pop(0)
            return send(*request, **options)

        script_names |= {"urlopen": unsteady, "time": SimpleNamespace(sleep=waits.append)}
        for change, instance in ((1, "picture"), (2, "picture"), (1, "report")):
            callbacks[0](change, None, instance)
    ((path, answer),) = stored.items()
    assert path == "/instances/picture/attachments/triage"
    assert json.loads(answer)["resourceType"] == "Bundle"
    assert logged == ["no triage of report: 415"]
    assert waits == [3, 5, 5]
