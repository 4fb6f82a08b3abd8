"""Comparisons of training steps."""
