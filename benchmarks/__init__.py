"""How fast EulerLoRA is, next to the baselines a reader would compare it with.

`python -m benchmarks.cpu` measures on this machine's CPU, `python -m benchmarks.gpu` on a CUDA
device; `python -m benchmarks.report` prints what they found as one table. Not installed with the
package: run it from a checkout.
"""
