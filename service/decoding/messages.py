"""Messages between the service and its decoding processes: what is large in them is not copied.

A head with two lengths, the bytes of one large buffer, and a pickle of all else. A pickle is quick
to read where it holds no classes, which have to be looked up.
"""

import pickle
import socket
import struct
from dataclasses import dataclass

HEAD = struct.Struct("=QQ")  # bytes of the buffer, bytes of the pickle
SMALL = 1024  # most pickles are shorter


@dataclass(frozen=True)
class Message:
    """A buffer of bytes, perhaps an empty one, and what goes with it."""

    raw: bytes | memoryview
    rest: object

    def send_some(self, connection: socket.socket) -> memoryview:
        """Sends what the socket takes, and returns what is left."""
        rest = pickle.dumps(self.rest)
        parts = (HEAD.pack(len(self.raw), len(rest)), self.raw, rest)
        sent = connection.sendmsg(parts)
        if sent == sum(map(len, parts)):
            return memoryview(b"")
        return memoryview(b"".join(parts))[sent:]

    def send(self, connection: socket.socket) -> None:
        """Sends all of it on a socket that blocks."""
        if left := self.send_some(connection):
            connection.sendall(left)


class Incoming:
    """One message, as it arrives.

    expected: bytes of its buffer, as far as they are known, which are provided for in advance.
    """

    def __init__(self, expected: int = 0) -> None:
        self._bytes = bytearray(HEAD.size + expected + SMALL)
        self._filled = 0

    def read(self, connection: socket.socket) -> Message | None:
        """The message, once it is whole; None where a socket that does not block has no more yet.

        Its buffer may be written to. Raises EOFError where the other side has closed, and OSError.
        """
        while self._filled < (whole := self._whole()):
            if len(self._bytes) < whole:
                self._bytes += bytes(whole - len(self._bytes))
            try:
                count = connection.recv_into(memoryview(self._bytes)[self._filled :])
            except BlockingIOError:
                return None
            if count == 0:
                raise EOFError
            self._filled += count
        raw, _ = HEAD.unpack_from(self._bytes)
        view = memoryview(self._bytes)[HEAD.size : whole]
        return Message(view[:raw], pickle.loads(view[raw:]))

    def _whole(self) -> int:
        """How many bytes there must be, as far as is known."""
        if self._filled < HEAD.size:
            return HEAD.size
        raw, rest = HEAD.unpack_from(self._bytes)
        return HEAD.size + int(raw) + int(rest)


def received(connection: socket.socket, expected: int = 0) -> Message:
    """The one message that is under way on a socket that blocks. Raises EOFError and OSError."""
    message = Incoming(expected).read(connection)
    assert message is not None
    return message
