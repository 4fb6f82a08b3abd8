"""The clinic: triage policies, their fit and evidence, reports, decisions, monitoring of a site."""
