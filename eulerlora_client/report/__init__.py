"""The HTML report of a triage run."""
