"""A triage run over many files, and what it writes."""
