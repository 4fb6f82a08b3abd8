"""Messages over a socket, whole and in pieces."""

import socket
import threading
from collections.abc import Iterator

import pytest

from service.decoding.messages import Incoming, Message, received

LARGE = bytes(range(256)) * 10_000  # more than a socket holds
REST = (("image/png", None), 224, "sha256:0")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("raw", [b"", b"x", LARGE], ids=["none", "small", "large"])
def test_what_is_sent_is_received(pair, raw) -> None:
    ours, theirs = pair
    sending = threading.Thread(target=Message(raw, REST).send, args=(ours,))
    sending.start()
    message = received(theirs)
    sending.join()
    assert (bytes(message.raw), message.rest) == (raw, REST)


def test_a_message_is_read_piece_by_piece_as_it_comes(pair) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    Message(b"raw", REST).send(ours)
    whole = theirs.recv(1000)
    incoming = Incoming()
    for at in range(len(whole)):
        assert incoming.read(theirs) is None
        ours.send(whole[at : at + 1])
    assert incoming.read(theirs) == Message(memoryview(bytearray(b"raw")), REST)


def test_what_a_socket_does_not_take_is_left(pair) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    left = Message(LARGE, REST).send_some(ours)
    assert 0 < len(left) < len(LARGE)
    ours.setblocking(True)
    sending = threading.Thread(target=ours.sendall, args=(left,))
    sending.start()
    assert received(theirs).raw == LARGE
    sending.join()


@pytest.mark.parametrize("sent", [b"", b"only a part of"])
def test_a_message_that_ends_early_is_told_from_a_whole_one(pair, sent) -> None:
    ours, theirs = pair
    ours.sendall(sent)
    ours.close()
    with pytest.raises(EOFError):
        received(theirs)
