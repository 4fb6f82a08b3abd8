"""The measurements of `benchmarks.service`."""
