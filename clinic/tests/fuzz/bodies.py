"""Malformed bodies of the clinic's routes, made from valid ones by random changes."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from pydicom import uid
from pydicom.encaps import encapsulate

from clinic.tests.service.test_dicom import dicom_file
from tests.fuzz.bodies import Body, encoded, image_body, jpeg, picture

EXTREMES = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0", b"\xff\xff", b"\x01\0")
SYNTAXES = tuple(f"1.2.840.10008.1.2{end}" for end in ("", ".1", ".2", ".1.99", ".5", ".4.90"))


def dicom_body(draw: random.Random) -> Body:
    """A DICOM file, changed mostly in its data elements."""
    content = bytearray(draw.choice(dicom_files()))
    if draw.random() < 0.1:
        syntax, other = draw.sample(SYNTAXES, 2)
        content = content.replace(syntax.encode(), other.encode())
    for _ in range(draw.choice((1, 1, 2, 4, 16))):
        end = len(content) if draw.random() < 0.3 else min(len(content), 700)
        at = draw.randrange(132, max(end, 133))
        choice = draw.random()
        if choice < 0.4:
            extreme = draw.choice(EXTREMES)
            content[at : at + len(extreme)] = extreme
        elif choice < 0.7:
            content[at : at + 1] = bytes([draw.randrange(256)])
        elif choice < 0.8:
            content[at:at] = b"\x08\x00\x40\x11SQ\0\0\xff\xff\xff\xff" * draw.choice((1, 50, 3000))
        elif choice < 0.9:
            del content[at : at + draw.choice((1, 2, 8, 100))]
        else:
            del content[at:]
    path = draw.choice(("/predict", "/triage"))
    return Body(path, bytes(content), {"Content-Type": "application/dicom"})


def triage_body(draw: random.Random) -> Body:
    """A picture for the route of the policy, whose answer may be FHIR."""
    accept = {"Accept": draw.choice(("*/*", "application/fhir+json"))}
    body = image_body(draw)
    return replace(body, path="/triage", headers={**body.headers, **accept})


PROTOCOLS: Mapping[str, Callable[[random.Random], Body]] = {
    "dicom": dicom_body,
    "image": triage_body,
}


@cache
def dicom_files() -> tuple[bytes, ...]:
    """The picture as a DICOM file of every kind that is accepted."""
    j2k = encapsulate([encoded("JPEG2000", no_jp2=True)])
    ybr = {"PhotometricInterpretation": "YBR_FULL_422"}
    return (
        dicom_file(picture().tobytes(), uid.ExplicitVRLittleEndian),
        dicom_file(picture().tobytes(), uid.ImplicitVRLittleEndian),
        dicom_file(encapsulate([jpeg()]), uid.JPEGBaseline8Bit, **ybr),
        dicom_file(j2k, uid.JPEG2000Lossless, PhotometricInterpretation="YBR_RCT"),
        dicom_file(j2k, uid.JPEG2000, PhotometricInterpretation="YBR_ICT"),
    )
