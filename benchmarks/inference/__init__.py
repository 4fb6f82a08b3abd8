"""Comparisons of inference."""
