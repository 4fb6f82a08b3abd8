"""Messages between the service and its decoder processes, without copies of large buffers.

Format: a header with two lengths, the bytes of one buffer, and a pickle of all other fields.
"""

import pickle
import socket
import struct
from dataclasses import dataclass

HEADER = struct.Struct("=QQ")  # bytes of the buffer, bytes of the pickle
PICKLE_BYTES = 1024  # initial space; most pickles are shorter


@dataclass(frozen=True)
class Message:
    """A buffer, which may be empty, and picklable fields."""

    buffer: bytes | memoryview
    fields: object

    def send_some(self, connection: socket.socket) -> memoryview:
        """Sends as much as the socket accepts and returns the rest."""
        fields = pickle.dumps(self.fields)
        parts = (HEADER.pack(len(self.buffer), len(fields)), self.buffer, fields)
        sent = connection.sendmsg(parts)
        if sent == sum(map(len, parts)):
            return memoryview(b"")
        return memoryview(b"".join(parts))[sent:]

    def send(self, connection: socket.socket) -> None:
        """Sends the whole message on a blocking socket."""
        if rest := self.send_some(connection):
            connection.sendall(rest)


class MessageReader:
    """Reads one message in pieces.

    buffer_bytes: the expected length of its buffer, for which space is allocated in advance.
    """

    def __init__(self, buffer_bytes: int = 0) -> None:
        self._bytes = bytearray(HEADER.size + buffer_bytes + PICKLE_BYTES)
        self._filled = 0

    def read(self, connection: socket.socket) -> Message | None:
        """Returns the message, or None if a non-blocking socket has no more data yet.

        The message's buffer is writable. Raises EOFError if the peer has closed the connection,
        and OSError.
        """
        while self._filled < (length := self._known_length()):
            if len(self._bytes) < length:
                self._bytes += bytes(length - len(self._bytes))
            try:
                count = connection.recv_into(memoryview(self._bytes)[self._filled :])
            except BlockingIOError:
                return None
            if count == 0:
                raise EOFError
            self._filled += count
        buffer_length, _ = HEADER.unpack_from(self._bytes)
        view = memoryview(self._bytes)[HEADER.size : length]
        return Message(view[:buffer_length], pickle.loads(view[buffer_length:]))

    def _known_length(self) -> int:
        """Returns the length of the message, or of its header if that is incomplete."""
        if self._filled < HEADER.size:
            return HEADER.size
        buffer_length, fields_length = HEADER.unpack_from(self._bytes)
        return HEADER.size + int(buffer_length) + int(fields_length)


def receive(connection: socket.socket, buffer_bytes: int = 0) -> Message:
    """Returns the next message on a blocking socket. Raises EOFError and OSError."""
    message = MessageReader(buffer_bytes).read(connection)
    assert message is not None
    return message
