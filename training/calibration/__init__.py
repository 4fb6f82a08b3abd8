"""Calibration of checkpoints and triage policies, also to a site's own pictures."""
