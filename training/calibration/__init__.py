"""Calibration of a checkpoint: feature statistics, thresholds and decision margins."""
