"""The Bundle that answers `POST /triage` with `Accept: application/fhir+json`."""

from datetime import UTC, datetime

from eulerlora_client.contract.answers import TriageResult
from service.fhir.elements import AI_ASSERTED, Element, full_url, identifier
from service.fhir.resources import device, observation, provenance

FHIR_VERSION = "4.0.1"


def triage_bundle(result: TriageResult, at: datetime | None = None) -> Element:
    """Returns the answer for one image as a FHIR R4 Bundle of three resources.

    at: the time of the answer, now by default.
    """
    instant = (at or datetime.now(UTC)).isoformat(timespec="milliseconds")
    item = result.item_id or result.prediction.request_id
    device_url = full_url(result.prediction.revision, "Device")
    observation_url = full_url(item, "Observation")
    entries = {
        device_url: device(result),
        observation_url: observation(result, device_url, instant),
        full_url(item, "Provenance"): provenance(result, observation_url, device_url, instant),
    }
    return {
        "resourceType": "Bundle",
        "meta": {"security": [AI_ASSERTED]},
        "identifier": identifier("request", item),
        "type": "collection",
        "timestamp": instant,
        "entry": [{"fullUrl": url, "resource": resource} for url, resource in entries.items()],
    }
