"""Messages between the service and its decoding processes: what is large in them is not copied.

A head with two lengths, the bytes of one large buffer, and a pickle of all else. A pickle is quick
to read where it holds no classes, which have to be looked up.
"""

import pickle
import socket
import struct
from dataclasses import dataclass

HEAD = struct.Struct("=QQ")  # bytes of the buffer, bytes of the pickle


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
    """One message, as it arrives."""

    def __init__(self) -> None:
        self._head = bytearray(HEAD.size)
        self._body: bytearray | None = None
        self._missing = memoryview(self._head)

    def read(self, connection: socket.socket) -> Message | None:
        """The message, once it is whole; None where a socket that does not block has no more yet.

        Its buffer may be written to. Raises EOFError where the other side has closed, and OSError.
        """
        while True:
            while self._missing:
                try:
                    count = connection.recv_into(self._missing)
                except BlockingIOError:
                    return None
                if count == 0:
                    raise EOFError
                self._missing = self._missing[count:]
            raw, rest = HEAD.unpack(self._head)
            if self._body is not None:
                whole = memoryview(self._body)
                return Message(whole[:raw], pickle.loads(whole[raw:]))
            self._body = bytearray(raw + rest)
            self._missing = memoryview(self._body)


def received(connection: socket.socket) -> Message:
    """The next message on a socket that blocks. Raises EOFError and OSError."""
    message = Incoming().read(connection)
    assert message is not None
    return message
