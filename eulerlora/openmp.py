"""How the threads of OpenMP, by which torch shares an operation among cores, wait for the next one.

Every thread that runs passes has a pool of OpenMP threads. Where the pools together have more
threads than there are cores, a thread of GNU's OpenMP spins 100 times by default, then sleeps, and
waking it takes longer than an operation of a small pass (libgomp's manual, "GOMP_SPINCOUNT").
"""

import os
import sys

WAITING = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "10000"}
"""With the policy "active" it spins 1000 times; the count is for the case of fewer threads than
cores, in which "active" alone would have it spin for ever."""


def choose_waiting() -> None:
    """Sets the environment for torch, which must not have been imported yet: it is read once.

    What a user has set is kept. Of other systems than Linux nothing is known.
    """
    if sys.platform == "linux" and os.environ.keys().isdisjoint(WAITING):
        os.environ.update(WAITING)
