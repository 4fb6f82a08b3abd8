"""Benchmarks of the service, as a client sees it: `python -m benchmarks.service`."""
