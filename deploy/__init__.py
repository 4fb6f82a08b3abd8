"""Deployment files, and a test of the container image."""
