"""Logs, metrics, traces and request identifiers."""
