"""Speed of EulerLoRA compared with baselines.

`python -m benchmarks.cpu` measures on the CPU, `python -m benchmarks.gpu` on a CUDA device, and
`python -m benchmarks.service` measures the service. `python -m benchmarks.report` prints all
results. The benchmarks are not part of the distribution: run them from a checkout.
"""
