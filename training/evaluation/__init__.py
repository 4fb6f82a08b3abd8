"""Metrics, calibration and evaluation of checkpoints."""
