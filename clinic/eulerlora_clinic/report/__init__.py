"""Outputs of a triage run: terminal table, CSV, JSON Lines and HTML report."""
