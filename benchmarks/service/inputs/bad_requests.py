"""Invalid requests of every kind with the statuses that the service may return."""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from benchmarks.service.inputs.bad_images import unsupported_files, unusable_files, unusual_files
from benchmarks.service.load.request import BOUNDARY, Part, form, get, post, post_form

PREDICT = b"POST /predict HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"
FORM = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Case:
    """A request and its valid statuses; none if the client disconnects during the request."""

    name: str
    request: bytes
    statuses: frozenset[int]


def unusual_cases(jpeg: bytes) -> list[Case]:
    """Returns requests with unusual valid files."""
    files = unusual_files(_small(jpeg))
    return [Case(name, post(data), only(200)) for name, data in files.items()]


def bad_cases(jpeg: bytes) -> list[Case]:
    """Returns all requests that the service must refuse."""
    return [
        *_image_cases(jpeg),
        *_form_cases(jpeg),
        *_http_cases(jpeg),
        *_parameter_cases(jpeg),
    ]


def _small(jpeg: bytes) -> Image.Image:
    with Image.open(BytesIO(jpeg)) as image:
        return image.resize((128, 96))


def _image_cases(jpeg: bytes) -> Iterator[Case]:
    image = _small(jpeg)
    for status, files in ((415, unsupported_files(image)), (422, unusable_files(image))):
        for name, data in files.items():
            yield Case(name, post(data), only(status))


def _form_cases(jpeg: bytes) -> Iterator[Case]:
    file = Part("file", jpeg, "a.jpg", "image/jpeg")
    forms = {
        "no file in the form": [Part("other", b"1")],
        "a file without a filename": [Part("file", jpeg)],
        "two files": [file, file],
        "an empty file": [Part("file", b"", "a.jpg", "image/jpeg")],
    }
    for name, parts in forms.items():
        yield Case(name, post_form(parts), only(422))
    valid, refused = form([file]), frozenset({400, 413})
    headers = b"".join(b"X-%d: 1\r\n" % number for number in range(20))
    bodies = {
        "1,001 parts": form([Part("part", b"1")] * 1001),
        "a text field of 2 MB": form([Part("text", bytes(2_000_000)), file]),
        "many part headers": valid.replace(b"Content-Type", headers + b"Content-Type", 1),
        "a wrong boundary": valid.replace(BOUNDARY.encode(), b"another"),
        "a huge preamble": bytes(1_000_000) + b"\r\n" + valid,
        "a form that ends early": valid[:-40],
    }
    for name, body in bodies.items():
        yield Case(name, post(body, FORM), refused)
    yield Case("no boundary", post(valid, "multipart/form-data"), refused)


def _http_cases(jpeg: bytes) -> Iterator[Case]:
    yield Case("an empty body", post(b""), only(422))
    yield Case("a urlencoded body", post(b"a=b", "application/x-www-form-urlencoded"), only(415))
    yield Case("a JSON body", post(b"{}", "application/json"), only(415))
    yield Case("a declared length of 1 GB", post(jpeg, length=10**9), only(413))
    yield Case("the client disconnects during the request", post(jpeg)[:-1000], frozenset())
    yield Case("a wrong method", get("/predict"), only(405))
    plain = PREDICT + b"Content-Type: image/jpeg\r\nContent-Length: 1\r\n"
    yield Case("no Host", plain + b"\r\n1", only(400))
    yield Case("two lengths", plain + HOST + b"Content-Length: 2\r\n\r\n12", only(400))
    huge = b"X-Huge: " + b"a" * 200_000 + b"\r\n"
    yield Case("a header of 200 kB", plain + HOST + huge + b"\r\n1", frozenset({400, 431}))


def _parameter_cases(jpeg: bytes) -> Iterator[Case]:
    wrong: list[dict[str, object]] = [
        {"mode": "stoch", "samples": 0},
        {"mode": "stoch", "samples": -1},
        {"mode": "stoch", "samples": 10**9},
        {"mode": "stoch", "samples": "1e9"},
        {"mode": "stoch", "samples": "NaN"},
        {"mode": "stoch", "samples": 4.5},
        {"mode": "det", "samples": 4},
        {"mode": "stoch", "samples": [4, 4]},
        {"sample": 4},
        {"mode": "other"},
        {"seed": -1},
    ]
    for parameters in wrong:
        yield Case(f"parameters {parameters}", post(jpeg, parameters=parameters), only(422))
    unknown = post(jpeg, parameters={"model": "unknown"})
    yield Case("an unknown model", unknown, only(404))


def only(status: int) -> frozenset[int]:
    """Returns a set of one status."""
    return frozenset({status})
