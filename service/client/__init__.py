"""The dermatology triage client."""
