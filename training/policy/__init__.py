"""Fitting of the triage policy."""
