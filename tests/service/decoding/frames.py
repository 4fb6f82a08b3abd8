"""The frames of the messages between the service and a decoder, written a second time."""

import struct

HEADER = struct.Struct("!IQ")
"""Bytes of the JSON object, and of what follows it."""


def frame(fields: str, data: bytes = b"") -> bytes:
    encoded = fields.encode()
    return HEADER.pack(len(encoded), len(data)) + encoded + data
