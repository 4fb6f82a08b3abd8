"""How the threads of OpenMP, which torch uses within an operation, wait for the next operation.

Every thread that runs forward passes has its pool of OpenMP threads. If all pools together have
more threads than the machine has cores, an idle thread of GNU OpenMP spins 100 times by default and
then sleeps. Waking it takes longer than an operation of a small pass (libgomp manual,
"GOMP_SPINCOUNT").
"""

import os
import sys

WAIT_POLICY = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "10000"}
"""The policy "active" spins 1000 times. The count is for machines with at least as many cores as
threads, where "active" alone spins without end.
"""


def set_openmp_wait_policy() -> None:
    """Sets the environment variables of `WAIT_POLICY`; call it before the first import of torch.

    OpenMP reads them once, when it is loaded. Does nothing if the user has set one of them, and on
    other systems than Linux.
    """
    if sys.platform == "linux" and os.environ.keys().isdisjoint(WAIT_POLICY):
        os.environ.update(WAIT_POLICY)
