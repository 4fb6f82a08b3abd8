"""The process from which decoders are forked. Importing this module is fast.

It has imported the decoder, but has none of the service's memory, threads, open files, device and
environment. multiprocessing has such a process too; but it inherits the environment, and its
children unpickle what they are sent and can write to its resource tracker.
"""

import socket
import struct
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Lock

from eulerlora_contract.processes import start_python

_MODULE = "service.decoding.worker"
"""The program of the process; not imported here, because it imports torch."""
NUMBER = struct.Struct("!i")
"""A process id, and later the exit code of the process."""
MAX_REQUEST_BYTES = 16 * 1024
START_TIMEOUT_S = 120.0  # the first start imports torch, possibly from a slow disk


@dataclass(frozen=True)
class Fork:
    """A forked process.

    Attributes:
        connection: A stream to the process.
        exit_status: A stream that has the exit code, as a NUMBER, once the process has ended.
    """

    pid: int
    connection: socket.socket
    exit_status: socket.socket


class ForkServer:
    """Starts the process when it is first needed, and again after it has ended. Thread-safe.

    It ends with this process.
    """

    def __init__(self, module: str = _MODULE) -> None:
        self._module = module
        self._lock = Lock()
        self._control: socket.socket | None = None

    def start(self) -> socket.socket:
        """Starts the process, unless it runs; does not wait for its imports.

        Returns:
            The socket for `send_fds`.
        """
        with self._lock:
            if self._control is None:
                self._control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with remote:
                    self._process = start_python(
                        self._module,
                        str(remote.fileno()),
                        environment={"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[remote.fileno()],
                        # A terminal's signals do not reach it; but it is in the same session: the
                        # kernel may divide the processors by session.
                        process_group=0,
                    )
            return self._control

    def fork(self, request: bytes) -> Fork:
        """Forks a process that is given `request`.

        Raises:
            OSError: If the fork server has ended; the next call starts it again.
            RuntimeError: If the fork server ends before it answers, or cannot fork.
        """
        control = self.start()
        with ExitStack() as ours:
            connection, remote = map(ours.enter_context, socket.socketpair())
            exit_status, remote_status = map(ours.enter_context, socket.socketpair())
            try:
                socket.send_fds(control, [request], [remote.fileno(), remote_status.fileno()])
            except OSError:  # the process has ended
                with self._lock:
                    if self._control is control:
                        self._control = None
                        control.close()
                raise
            remote.close()
            remote_status.close()
            exit_status.settimeout(START_TIMEOUT_S)
            pid = exit_status.recv(NUMBER.size)
            if not pid:
                raise RuntimeError("the process from which decoders are forked has ended")
            exit_status.settimeout(None)
            ours.pop_all()
            return Fork(NUMBER.unpack(pid)[0], connection, exit_status)


FORK_SERVER = ForkServer()
"""That of the service."""
