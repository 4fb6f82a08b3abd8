"""Standard error that cannot stop the process: its reader may be slow, gone, or a full disk.

Importing this module is fast.

`LineWriter` is a text stream on a file descriptor. Its methods neither wait nor fail, whatever the
reader does. Lines arrive whole and in order, or are dropped and counted.
"""

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from typing import NoReturn, TextIO

__all__ = ["LineWriter", "dropped_lines", "exit_now", "protect_stderr"]

_MAX_PENDING_BYTES = 1024 * 1024
_EXIT_WAIT_S = 1.0
"""For a reader to take the last lines."""


class LineWriter(io.TextIOBase):
    """A text stream on a file descriptor.

    A thread writes its lines. Those for which there is no room while the reader is slow, and those
    that cannot be written, are dropped and counted in `dropped`. Thread-safe, and safe in signal
    handlers.
    """

    def __init__(
        self, descriptor: int, encoding: str = "utf-8", max_pending_bytes: int = _MAX_PENDING_BYTES
    ) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._encoding = encoding
        self._max_pending_bytes = max_pending_bytes
        self._lines: deque[bytes] = deque()
        self._pending_bytes = 0  # with the line that is being written
        self._unfinished = b""
        self._changed = threading.Condition()
        threading.Thread(target=self._write_lines, name="stderr", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the descriptor; other characters are escaped."""
        return self._encoding

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """A line is written once it is complete."""
        with self._changed:
            *lines, self._unfinished = (
                self._unfinished + text.encode(self._encoding, "backslashreplace")
            ).split(b"\n")
            for line in lines:
                self._add(line + b"\n")
        return len(text)

    def flush(self) -> None:
        """Writes an incomplete line too; does not wait."""
        with self._changed:
            if self._unfinished:
                self._add(self._unfinished)
                self._unfinished = b""

    def drain(self, timeout_s: float = _EXIT_WAIT_S) -> None:
        """Waits until everything is written, at most for a time."""
        self.flush()
        with self._changed:
            self._changed.wait_for(lambda: self._pending_bytes == 0, timeout_s)

    def _add(self, line: bytes) -> None:
        if self._pending_bytes + len(line) > self._max_pending_bytes:
            self.dropped += 1
            return
        self._lines.append(line)
        self._pending_bytes += len(line)
        self._changed.notify_all()

    def _write_lines(self) -> NoReturn:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
            try:
                self._write_bytes(line)
            except OSError:
                with self._changed:
                    self.dropped += 1
            with self._changed:
                self._pending_bytes -= len(line)
                self._changed.notify_all()

    def _write_bytes(self, line: bytes) -> None:
        """Writes a line, and waits for its reader. Raises OSError."""
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process has made the open file non-blocking
                select.select([], [self._descriptor], [])


def protect_stderr() -> None:
    """Replaces sys.stderr by a `LineWriter`, unless it has no file, as in a test.

    Opens closed standard descriptors, which would otherwise become those of sockets and logs.
    """
    closed = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.append(number)
    for _ in closed:
        os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    stream: TextIO | None = sys.stderr
    if stream is None or 2 in closed:
        sys.stderr = LineWriter(-1)
        return
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return
    writer = LineWriter(descriptor, stream.encoding)
    sys.stderr = writer
    atexit.register(writer.drain)


def dropped_lines() -> int:
    return sys.stderr.dropped if isinstance(sys.stderr, LineWriter) else 0


def exit_now(status: int) -> NoReturn:
    """Ends the process without the exit of the interpreter, after the last lines of stderr."""
    if isinstance(sys.stderr, LineWriter):
        sys.stderr.drain()
    else:
        sys.stderr.flush()
    os._exit(status)
