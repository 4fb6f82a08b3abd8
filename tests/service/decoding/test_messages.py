"""Messages over a socket, complete and in pieces."""

import socket
import threading
from collections.abc import Iterator

import pytest

from service.decoding.worker import Message, MessageReader, receive

LARGE = bytes(range(256)) * 10_000  # more than a socket buffer
FIELDS = (("image/png", None), 224, "sha256:0")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("buffer", [b"", b"x", LARGE], ids=["empty", "small", "large"])
def test_a_message_is_received_unchanged(pair, buffer) -> None:
    ours, theirs = pair
    sending = threading.Thread(target=Message(buffer, FIELDS).send, args=(ours,))
    sending.start()
    message = receive(theirs)
    sending.join()
    assert (bytes(message.buffer), message.fields) == (buffer, FIELDS)


def test_a_message_is_read_in_pieces(pair) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    Message(b"data", FIELDS).send(ours)
    whole = theirs.recv(1000)
    reader = MessageReader()
    for index in range(len(whole)):
        assert reader.read(theirs) is None
        ours.send(whole[index : index + 1])
    assert reader.read(theirs) == Message(memoryview(bytearray(b"data")), FIELDS)


def test_the_unsent_rest_is_returned(pair) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    rest = Message(LARGE, FIELDS).send_some(ours)
    assert 0 < len(rest) < len(LARGE)
    ours.setblocking(True)
    sending = threading.Thread(target=ours.sendall, args=(rest,))
    sending.start()
    assert receive(theirs).buffer == LARGE
    sending.join()


@pytest.mark.parametrize("sent", [b"", b"a part of"])
def test_an_incomplete_message_raises_eof_error(pair, sent) -> None:
    ours, theirs = pair
    ours.sendall(sent)
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs)
