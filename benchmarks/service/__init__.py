"""What the service shows under load: `python -m benchmarks.service`.

Each figure drives `eulerlora serve` as a process of its own, over HTTP alone.
"""
