"""Benchmarks of the service, as a client sees it: `python -m eulerlora_lab.benchmarks.service`."""
