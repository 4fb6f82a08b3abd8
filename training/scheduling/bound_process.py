"""`python -m training.scheduling.bound_process PARENT COMMAND...`: a command bound to its parent.

The command gets SIGINT when the process PARENT ends, also if it is killed: a training then saves
its state and releases its log, so that it can continue on another machine. Linux only.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def bound(command: Sequence[str]) -> tuple[str, ...]:
    """Returns a command line that runs `command` until the calling thread ends."""
    return (sys.executable, "-m", __name__, str(os.getpid()), *command)


def main() -> None:
    """Replaces this process by the command of the command line."""
    parent, *command = sys.argv[1:]
    # A program started by Ray may block or ignore SIGINT; both would be inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT) != 0:
        sys.exit("prctl failed")
    if os.getppid() != int(parent):
        sys.exit("the parent has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
