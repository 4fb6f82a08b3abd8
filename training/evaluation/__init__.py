"""Calibration and evaluation of checkpoints."""
