"""Speed of EulerLoRA compared with baselines.

`python -m eulerlora_lab.benchmarks.cpu` measures inference and the training step on a CPU,
`benchmarks.gpu` the same and the service on a CUDA device, `benchmarks.service` the service under
load, and `benchmarks.peers` other methods and servers. All print a table of results. The benchmarks
are not part of the distribution: run them from a checkout.
"""
