"""Measurements, their results and their workloads."""
