"""A triage run over image files: file selection, rows and their ranking."""
