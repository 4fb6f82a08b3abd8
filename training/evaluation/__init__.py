"""Evaluation of checkpoints."""
