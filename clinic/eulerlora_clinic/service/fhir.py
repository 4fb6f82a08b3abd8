"""The FHIR answer of `POST /triage`: a Bundle of Device, Observation, Provenance and model card.

It follows HL7's guide AI Transparency on FHIR (STU1 ballot). The header Accept asks for it.
"""

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from eulerlora_clinic.service.triage import TriageFormat
from eulerlora_contract.answers import TriageResult

_Element = dict[str, Any]
_URN = "urn:eulerlora"
_TERMINOLOGY = "http://terminology.hl7.org/CodeSystem"
_UNITS = "http://unitsofmeasure.org"
_GUIDE, _GUIDE_VERSION = "http://hl7.org/fhir/uv/aitransparency", "1.0.0-ballot"
_AI_ASSERTED: _Element = {
    "system": f"{_TERMINOLOGY}/v3-ObservationValue",
    "code": "AIAST",
    "display": "Artificial Intelligence asserted",
}
"""The security label of everything that a model has concluded, and the reason of a Provenance."""

_EXTENSION = f"{_GUIDE}/StructureDefinition/aitransparency"
_NATS = "nat"
_SOFTWARE = "EulerLoRA"
FHIR_JSON = "application/fhir+json"
_FHIR_VERSIONS = ("4.0", "4.0.1")


def _concept(kind: str, code: str, display: str, text: str | None = None) -> _Element:
    """A CodeableConcept in the code system `kind` of this project.

    `display` and `text` are for people; without a text, `display` is it.
    """
    coding = {"system": f"{_URN}:{kind}", "code": code, "display": display}
    return {"coding": [coding], "text": text or display}


def _identifier(kind: str, value: str) -> _Element:
    """An Identifier in the system `kind` of this project."""
    return {"system": f"{_URN}:{kind}", "value": value}


def _absent(reason: str) -> _Element:
    """Why a component has no value, as a code of FHIR's data-absent-reason."""
    coding = {"system": f"{_TERMINOLOGY}/data-absent-reason", "code": reason}
    return {"dataAbsentReason": {"coding": [coding]}}


def _profile(name: str) -> list[str]:
    """The canonical URL of a profile of the guide, for `meta.profile`."""
    return [f"{_GUIDE}/StructureDefinition/{name}|{_GUIDE_VERSION}"]


def _guide_code(system: str, code: str, display: str) -> _Element:
    """A CodeableConcept of a code system of the guide."""
    coding = {"system": f"{_GUIDE}/CodeSystem/{system}", "code": code, "display": display}
    return {"coding": [coding]}


def _full_url(item: str, resource: str) -> str:
    """The URN of a resource, which is the same for the same item."""
    return uuid5(NAMESPACE_URL, f"{_URN}:{item}:{resource}").urn


def _device(result: TriageResult, card_url: str | None) -> _Element:
    """The model and its revision as a Device. `card_url`: of its model card, if any."""
    prediction = result.prediction
    kind = _guide_code("AIdeviceTypeCS", "Deep-Learning-Models", "Deep Learning Models")
    extensions: list[_Element] = [{"url": f"{_EXTENSION}.AIKind", "valueCodeableConcept": kind}]
    if card_url is not None:
        reference = {"reference": card_url}
        extensions.append(
            {"url": f"{_EXTENSION}.modelCardDescription", "valueReference": reference}
        )
    return {
        "resourceType": "Device",
        "meta": {"profile": _profile("AI-Device")},
        "extension": extensions,
        "identifier": [_identifier("revision", prediction.revision)],
        "status": "active",
        "deviceName": [
            {"name": _SOFTWARE, "type": "user-friendly-name"},
            {"name": prediction.model, "type": "model-name"},
        ],
        "type": {
            **_guide_code(
                "AIdeviceTypeCS", "Artificial-Intelligence", "All kinds of Artificial Intelligence"
            ),
            "text": "Image classifier, for demonstration and research only",
        },
        "version": [{"value": prediction.revision}],
        "note": [{"text": result.warning}],
    }


def _model_card_reference(result: TriageResult, card: str) -> _Element:
    """The model card, in Markdown, as a DocumentReference."""
    return {
        "resourceType": "DocumentReference",
        "meta": {"profile": _profile("AI-ModelCard")},
        "identifier": [_identifier("revision", result.prediction.revision)],
        "status": "current",
        "type": _guide_code("AImodelCardCS", "AIModelCard", "AI Model-Card"),
        "category": [  # the ballot requires the first one of every model card
            _guide_code("AImodelCardCS", "AIInputPrompt", "AI Input Prompt"),
            _guide_code("AImodelCardCS", "AImodelCardMarkdownFormat", "Markdown Format"),
        ],
        "content": [
            {
                "attachment": {
                    "contentType": "text/markdown",
                    "data": b64encode(card.encode()).decode(),
                    "title": f"Model card of {result.prediction.model}",
                }
            }
        ],
    }


def _observation(result: TriageResult, device_url: str, issued: str) -> _Element:
    """The disposition, with a component for each number, as an Observation.

    It is preliminary, because nobody has reviewed it, and has no subject, because the service does
    not know the patient.
    """
    prediction, policy = result.prediction, result.policy
    drawn = f"{prediction.samples} sample{'s' * (prediction.samples != 1)}"
    drawn += f", {prediction.views} views" if prediction.views > 1 else ""
    sampling = f"mode {prediction.mode}, {drawn}, seed {prediction.seed}"
    texts = [result.warning, *(reason.words for reason in result.shown.reasons), policy.notice]
    return {
        "resourceType": "Observation",
        "meta": {"security": [_AI_ASSERTED]},
        "identifier": [_identifier("request", result.item_id or prediction.request_id)],
        "status": "preliminary",
        "category": [
            {"coding": [{"system": f"{_TERMINOLOGY}/observation-category", "code": "imaging"}]}
        ],
        "code": _concept("observation", "triage", "Triage of a picture"),
        "issued": issued,
        "valueCodeableConcept": _concept(
            "disposition", result.disposition, result.title, result.pathway
        ),
        "note": [{"text": text} for text in texts if text],
        "method": {"text": f"Policy {policy.version} ({policy.hash}); {sampling}"},
        "device": {"reference": device_url},
        "component": list(_components(result)),
    }


def _provenance(result: TriageResult, observation_url: str, device_url: str, at: str) -> _Element:
    """Who concluded what from what as a Provenance. `at`: an instant."""
    item = result.item_id or result.prediction.request_id
    role = {"system": f"{_TERMINOLOGY}/provenance-participant-type", "code": "author"}
    return {
        "resourceType": "Provenance",
        "meta": {"profile": _profile("AI-Provenance"), "security": [_AI_ASSERTED]},
        "target": [{"reference": observation_url}],
        "occurredDateTime": at,
        "recorded": at,
        "policy": [f"{_URN}:policy:{result.policy.hash}"],
        "reason": [{"coding": [_AI_ASSERTED]}],
        "agent": [{"type": {"coding": [role]}, "who": {"reference": device_url}}],
        "entity": [
            {
                "role": "source",
                "what": {
                    "identifier": _identifier("request", item),
                    "display": "The picture of this request, which is not stored",
                },
            }
        ],
    }


def _figure(result: TriageResult, value: float, unit: str | None = None) -> _Element:
    """The value of a component, or why it has none: the image is unfamiliar.

    `unit`: for people; None for a share of 1.
    """
    if result.shown.figures is None:
        return _absent("not-applicable")
    in_unit = {"system": _UNITS, "code": "1"} if unit is None else {"unit": unit}
    return {"valueQuantity": {"value": value, **in_unit}}


def _components(result: TriageResult) -> Iterator[_Element]:
    """The probabilities of the classes, the scores and the flags."""
    prediction = result.prediction
    for name, probability in prediction.probabilities.items():
        code = _concept("class", name, result.name_of(name))
        yield {"code": code, **_figure(result, probability)}
    for name, display, value, unit in (
        ("target", f"Probability of {result.target.name}", result.target.probability, None),
        ("msp", "Highest class probability", prediction.msp, None),
        ("entropy", "Entropy of the class probabilities", prediction.entropy, _NATS),
        ("expected_entropy", "Mean entropy of trajectories", prediction.expected_entropy, _NATS),
        ("mutual_information", "Disagreement", prediction.mutual_information, _NATS),
    ):
        yield {"code": _concept("score", name, display), **_figure(result, value, unit)}
    for name, display, flag in (
        ("ood", "Out of distribution by highest probability", prediction.ood),
        ("unfamiliar", "Unlike the training pictures", prediction.unfamiliar),
    ):
        answer = _absent("unknown") if flag is None else {"valueBoolean": flag}
        yield {"code": _concept("flag", name, display), **answer}


def _triage_bundle(result: TriageResult, card: str, at: datetime | None = None) -> _Element:
    """The answer for one image as a FHIR R4 Bundle.

    `card`: the model card, in Markdown; empty if there is none. `at`: the time of the answer, now
    by default.
    """
    instant = (at or datetime.now(UTC)).isoformat(timespec="milliseconds")
    item = result.item_id or result.prediction.request_id
    device_url = _full_url(result.prediction.revision, "Device")
    card_url = _full_url(result.prediction.revision, "DocumentReference") if card else None
    observation_url = _full_url(item, "Observation")
    entries = {
        device_url: _device(result, card_url),
        observation_url: _observation(result, device_url, instant),
        _full_url(item, "Provenance"): _provenance(result, observation_url, device_url, instant),
    }
    if card_url is not None:
        entries[card_url] = _model_card_reference(result, card)
    return {
        "resourceType": "Bundle",
        "meta": {"security": [_AI_ASSERTED]},
        "identifier": _identifier("request", item),
        "type": "collection",
        "timestamp": instant,
        "entry": [{"fullUrl": url, "resource": resource} for url, resource in entries.items()],
    }


def _described(resource: str, description: str, properties: _Element, *required: str) -> _Element:
    """The schema of a resource, which has more elements than those that are described."""
    kind = {"type": "string", "enum": [resource]}
    return {
        "type": "object",
        "description": description,
        "required": ["resourceType", *required],
        "properties": {"resourceType": kind, **properties},
    }


_TEXT: _Element = {"type": "string"}
_RESOURCES = ("Device", "Observation", "Provenance", "DocumentReference")
_SCHEMA = _described(
    "Bundle",
    "A FHIR R4 Bundle (https://hl7.org/fhir/R4/bundle.html) with the answer for one image.",
    {
        "identifier": {"type": "object", "properties": {"system": _TEXT, "value": _TEXT}},
        "type": {"type": "string", "enum": ["collection"]},
        "timestamp": {"type": "string", "format": "date-time"},
        "entry": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["fullUrl", "resource"],
                "properties": {
                    "fullUrl": _TEXT,
                    "resource": {
                        "type": "object",
                        "description": "A resource of this type.",
                        "required": ["resourceType"],
                        "properties": {"resourceType": {"type": "string", "enum": [*_RESOURCES]}},
                        "additionalProperties": True,
                    },
                },
            },
        },
    },
    "type",
    "timestamp",
    "entry",
)
FHIR = TriageFormat(_triage_bundle, "FhirBundle", _SCHEMA, {"fhirversion": _FHIR_VERSIONS})
