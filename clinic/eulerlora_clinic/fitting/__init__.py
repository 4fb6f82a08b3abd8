"""Fits of a triage policy, and of a checkpoint to the pictures of a site."""
