"""Answers of `/triage` as HL7 FHIR R4 resources."""
