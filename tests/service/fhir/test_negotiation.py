"""The media type that an Accept header chooses."""

import pytest

from eulerlora_client.contract.problems import NotAcceptable
from service.fhir import FHIR_JSON, JSON, chosen_media_type


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
def test_the_preferred_type_is_chosen(accept, chosen) -> None:
    assert chosen_media_type(accept) == chosen


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
def test_a_header_without_a_type_of_the_service_is_refused(accept) -> None:
    with pytest.raises(NotAcceptable, match="expected Accept: application/json"):
        chosen_media_type(accept)
