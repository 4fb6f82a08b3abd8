"""Data types that several resources use, and the systems of their codes."""

from typing import Any
from uuid import NAMESPACE_URL, uuid5

Element = dict[str, Any]

URN = "urn:eulerlora"
TERMINOLOGY = "http://terminology.hl7.org/CodeSystem"
UNITS = "http://unitsofmeasure.org"

AI_ASSERTED: Element = {
    "system": f"{TERMINOLOGY}/v3-ObservationValue",
    "code": "AIAST",
    "display": "Artificial Intelligence asserted",
}
"""The security label of everything that a model has concluded."""

UNKNOWN: Element = {"coding": [{"system": f"{TERMINOLOGY}/data-absent-reason", "code": "unknown"}]}


def concept(kind: str, code: str, display: str, text: str | None = None) -> Element:
    """Returns a CodeableConcept. kind: the name of a code system of this project."""
    coding = {"system": f"{URN}:{kind}", "code": code, "display": display}
    return {"coding": [coding], "text": text or display}


def identifier(kind: str, value: str) -> Element:
    """Returns an Identifier. kind: the name of a system of this project."""
    return {"system": f"{URN}:{kind}", "value": value}


def number(value: float, unit: str | None = None) -> Element:
    """Returns a Quantity. unit: for people; None for a share of 1."""
    if unit is not None:
        return {"value": value, "unit": unit}
    return {"value": value, "system": UNITS, "code": "1"}


def full_url(item: str, resource: str) -> str:
    """Returns the URN of a resource, which is the same for the same item."""
    return uuid5(NAMESPACE_URL, f"{URN}:{item}:{resource}").urn
