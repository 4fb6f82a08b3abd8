"""The resources: Device, Observation and Provenance."""

from collections.abc import Iterator

from eulerlora_client.contract.answers import TriageResult
from service.fhir.elements import (
    AI_ASSERTED,
    TERMINOLOGY,
    UNKNOWN,
    URN,
    Element,
    concept,
    identifier,
    number,
)

NATS = "nat"
SECURITY: Element = {"security": [AI_ASSERTED]}
SOFTWARE = "EulerLoRA"


def device(result: TriageResult) -> Element:
    """Returns the model and its revision as a Device."""
    prediction = result.prediction
    return {
        "resourceType": "Device",
        "identifier": [identifier("revision", prediction.revision)],
        "status": "active",
        "deviceName": [
            {"name": SOFTWARE, "type": "user-friendly-name"},
            {"name": prediction.model, "type": "model-name"},
        ],
        "type": {"text": "Image classifier, for demonstration and research only"},
        "version": [{"value": prediction.revision}],
        "note": [{"text": result.warning}],
    }


def observation(result: TriageResult, device_url: str, issued: str) -> Element:
    """Returns the disposition, with a component for each number, as an Observation.

    It is preliminary, because nobody has reviewed it, and has no subject, because the service does
    not know the patient. issued: an instant.
    """
    prediction, policy = result.prediction, result.policy
    drawn = "not sampled" if prediction.sampled is False else f"{prediction.samples} samples"
    sampling = f"mode {prediction.mode}, {drawn}, seed {prediction.seed}"
    texts = [result.warning, *(reason.words for reason in result.reasons), policy.notice]
    return {
        "resourceType": "Observation",
        "meta": SECURITY,
        "identifier": [identifier("request", result.item_id or prediction.request_id)],
        "status": "preliminary",
        "category": [
            {"coding": [{"system": f"{TERMINOLOGY}/observation-category", "code": "imaging"}]}
        ],
        "code": concept("observation", "triage", "Triage of a picture of a skin lesion"),
        "issued": issued,
        "valueCodeableConcept": concept(
            "disposition", result.disposition, result.title, result.pathway
        ),
        "note": [{"text": text} for text in texts if text],
        "method": {"text": f"Policy {policy.version} ({policy.hash}); {sampling}"},
        "device": {"reference": device_url},
        "component": [*_class_components(result), *_uncertainty_components(result)],
    }


def provenance(result: TriageResult, observation_url: str, device_url: str, at: str) -> Element:
    """Returns who concluded what from what as a Provenance. at: an instant."""
    item = result.item_id or result.prediction.request_id
    role = {"system": f"{TERMINOLOGY}/provenance-participant-type", "code": "assembler"}
    return {
        "resourceType": "Provenance",
        "meta": SECURITY,
        "target": [{"reference": observation_url}],
        "recorded": at,
        "policy": [f"{URN}:policy:{result.policy.hash}"],
        "agent": [{"type": {"coding": [role]}, "who": {"reference": device_url}}],
        "entity": [
            {
                "role": "source",
                "what": {
                    "identifier": identifier("request", item),
                    "display": "The picture of this request, which is not stored",
                },
            }
        ],
    }


def _class_components(result: TriageResult) -> Iterator[Element]:
    for name, probability in result.prediction.probabilities.items():
        code = concept("class", name, result.name_of(name))
        yield {"code": code, "valueQuantity": number(probability)}


def _uncertainty_components(result: TriageResult) -> Iterator[Element]:
    prediction = result.prediction
    for name, display, value, unit in (
        ("malignant", "Probability of the malignant classes", result.malignant.probability, None),
        ("msp", "Highest class probability", prediction.msp, None),
        ("entropy", "Entropy of the class probabilities", prediction.entropy, NATS),
        ("expected_entropy", "Mean entropy of trajectories", prediction.expected_entropy, NATS),
        ("mutual_information", "Disagreement", prediction.mutual_information, NATS),
    ):
        yield {"code": concept("score", name, display), "valueQuantity": number(value, unit)}
    for name, display, flag in (
        ("ood", "Out of distribution by highest probability", prediction.ood),
        ("unfamiliar", "Unlike the training pictures", prediction.unfamiliar),
    ):
        answer = {"dataAbsentReason": UNKNOWN} if flag is None else {"valueBoolean": flag}
        yield {"code": concept("flag", name, display), **answer}
