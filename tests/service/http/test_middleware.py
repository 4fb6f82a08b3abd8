"""Requests that are refused by their headers, HEAD, and limits on bodies."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from eulerlora_contract.problems import (
    Overloaded,
    QuotaExceeded,
)
from service.admission import capacity_check
from service.fair_sharing import ClientQuota, ShareExceeded
from service.http.responses import add_problem_handlers
from service.inference.queue import RequestQueue
from service.settings import ServiceSettings
from tests.service.conftest import app_of
from tests.service.fake_engine import FakeEngine
from tests.service.http.plain_app import guarded, plain_app
from tests.service.real_server import (
    PROBE,
    SOCKET_TIMEOUT_S,
    connect,
    exchange,
    is_closed,
    read_response,
    run_server,
)
from tests.service.settings import settings_of

pytestmark = pytest.mark.anyio

HOSTS = frozenset({"clinic.example", "::1"})


def code(headers: Headers, path: str = "/predict", **options: Any) -> str | None:
    """The code with which a service with these options refuses a request."""
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": b"/predict", "query_string": b"",
        "headers": headers.raw,
    }  # fmt: skip
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(guarded(JSONResponse({"code": None}), **options)(scope, receive, send))
    answer: dict[str, str | None] = json.loads(sent[1]["body"])
    return answer["code"]


@pytest.mark.parametrize("path", ["/predict\n", "/livez\n", "/\n", "/docs\n"])
def test_an_address_that_ends_with_a_line_feed_is_unknown(path: str) -> None:
    """Starlette's patterns would match it, but no limit by address."""
    assert code(Headers({}), path) == "not_found"


@pytest.mark.parametrize(
    ("host", "accepted"),
    [("clinic.example", True), ("Clinic.Example:8443", True), ("clinic.example.", True),
     ("[::1]:8000", True), ("other.example", False), ("clinic.example.evil.example", False),
     ("", False), ("[::2]", False)],
)  # fmt: skip
def test_only_named_hosts_are_accepted(host: str, accepted: bool) -> None:
    headers = Headers({"host": host})
    assert code(headers, hosts=HOSTS) == (None if accepted else "misdirected_request")
    assert code(headers) is None


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [(None, True), ("https://clinic.example", True), ("http://CLINIC.example", True),
     ("https://evil.example", False), ("https://clinic.example:8443", False),
     ("https://clinic.example.evil.example", False), ("null", False), ("", False),
     ("https://clinic.example:443", True), ("http://clinic.example:80", True),
     ("https://clinic.example:80", False), ("http://clinic.example:443", False),
     ("http://[", False), ("http://[::1", False), ("http://clinic.example:99999999x", False),
     ("http://clinic.example/page", False), ("http://user@clinic.example", False),
     ("file://clinic.example", False), ("clinic.example", False), ("http://", False),
     ("http://\xff\xfe", False)],
)  # fmt: skip
def test_only_pages_of_the_service_itself_may_use_it_through_a_browser(origin, accepted) -> None:
    headers = Headers({"host": "clinic.example"} | ({} if origin is None else {"origin": origin}))
    assert code(headers, same_origin=True) == (None if accepted else "foreign_origin")
    assert code(headers) is None


@pytest.mark.parametrize(
    ("host", "origin", "accepted"),
    [("clinic.example:443", "https://clinic.example", True),
     ("clinic.example:80", "http://clinic.example", True),
     ("clinic.example:8000", "http://clinic.example:8000", True),
     ("[::1]:80", "http://[::1]", True), ("[::1]", "http://[::1]:80", True),
     ("clinic.example:80", "https://clinic.example", False),
     ("[::1", "http://[::1", False), ("", "http://", False)],
)  # fmt: skip
def test_a_default_port_of_the_host_equals_none(host, origin, accepted) -> None:
    assert (code(Headers({"host": host, "origin": origin}), same_origin=True) is None) == accepted


def test_every_one_of_several_origins_must_be_that_of_the_service() -> None:
    own, other = (b"origin", b"http://clinic.example"), (b"origin", b"http://evil.example")
    for origins in ([own, other], [other, own]):
        headers = Headers(raw=[(b"host", b"clinic.example"), *origins])
        assert code(headers, same_origin=True) == "foreign_origin"


@pytest.fixture(scope="module")
def port(model) -> Iterator[int]:
    """The port of a keyless service that is called `localhost`."""
    with run_server(app_of(model, hosts=frozenset({"localhost"}))) as port:
        yield port


def request(method: str, path: str, host: str = "localhost", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()


@pytest.mark.parametrize(
    ("host", "headers", "status", "problem"),
    [("evil.example", "", 421, "misdirected_request"),
     ("localhost", "Origin: http://evil.example\r\n", 403, "foreign_origin"),
     ("localhost", "Origin: http://[evil\r\n", 403, "foreign_origin"),
     ("localhost", "Content-Encoding: gzip\r\n", 415, "unsupported_media")],
)  # fmt: skip
def test_a_foreign_request_is_refused_before_its_body(port, host, headers, status, problem) -> None:
    announced = headers + "Content-Length: 10000000\r\n"
    with connect(port) as connection:
        connection.sendall(request("POST", "/predict", host, announced))
        response = read_response(connection)
    assert (response.status, response.problem["code"]) == (status, problem)
    assert "evil" not in response.body.decode()
    for own in (f"Origin: http://localhost:{port}\r\n", ""):
        assert exchange(port, request("GET", "/models", f"localhost:{port}", own)).status == 200


def test_a_target_in_absolute_form_names_the_host_in_place_of_the_header(port) -> None:
    own = f"http://localhost:{port}"
    for target in (f"{own}/models", f"{own.upper()}/models?", f"{own}/%6Dodels"):
        response = exchange(port, request("GET", target, host="evil.example"))
        assert (response.status, b"tiny" in response.body) == (200, True)
    assert exchange(port, request("GET", own)).headers["content-type"].startswith("text/html")
    for target in ("http://evil.example/models", "http:///models", "http://evil@localhost/models"):
        assert exchange(port, request("GET", target)).status == 421
    uncompressed = "Content-Encoding: identity\r\n"
    assert exchange(port, request("GET", f"{own}/models", headers=uncompressed)).status == 200


def test_probes_are_answered_under_every_name(port) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert exchange(port, request("GET", path, "10.0.0.7:8000")).status == 200


@pytest.mark.parametrize("path", ["/predict/", "/predict/batch/", "/models/", "/livez/", "/docs/"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_trailing_slash_is_never_redirected(port, method: str, path: str) -> None:
    response = exchange(port, request(method, path, headers="Content-Length: 0\r\n"))
    assert response.status in (404, 405)
    assert "location" not in response.headers


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/metrics", "/models", "/openapi.json"])
def test_head_has_the_headers_of_get_and_no_body(port, path: str) -> None:
    with connect(port) as connection:
        connection.sendall(request("HEAD", path) + request("GET", path))
        response = read_response_without_body(connection)
        answer = read_response(connection)
    assert answer.status == 200
    assert response.startswith(b"HTTP/1.1 200 ")
    assert f"content-type: {answer.headers['content-type']}".encode() in response.lower()
    assert b"content-length: " in response.lower()


def read_response_without_body(connection) -> bytes:
    """The headers of the next response; nothing after them is read."""
    received = bytearray()
    while not received.endswith(b"\r\n\r\n"):
        received += connection.recv(1)
    return bytes(received)


CLIENT = "address:testclient"


@pytest.fixture
def queue() -> RequestQueue:
    return RequestQueue(ServiceSettings(max_waiting_rows=12))


@pytest.fixture
def quota() -> ClientQuota:
    return ClientQuota(60, "s")


@pytest.fixture
def bodies_read() -> list[str]:
    """The paths of the requests that reached the application."""
    return []


@pytest.fixture
def client(queue: RequestQueue, quota: ClientQuota, bodies_read: list[str]) -> TestClient:
    async def respond(request: Request) -> PlainTextResponse:
        bodies_read.append(request.url.path)
        return PlainTextResponse(f"{len(await request.body())} bytes")

    routes = [Route(path, respond, methods=["POST"]) for path in ("/predict", "/other")]
    admission = capacity_check(queue, quota, ("/predict",))
    return TestClient(guarded(Starlette(routes=routes), admission))


def test_a_client_that_uses_its_share_is_refused_before_its_body_is_read(
    client, queue, bodies_read
) -> None:
    engine: Any = FakeEngine()
    with queue.reserve(CLIENT, engine, [6]):
        response = client.post("/predict", content=b"image", headers={"X-Request-ID": "mine"})
        assert (response.status_code, response.json()["code"]) == (503, "overloaded")
        assert response.headers["Content-Type"] == "application/problem+json"
        assert int(response.headers["Retry-After"]) >= 1
        assert response.json()["request_id"] == "mine"
        assert bodies_read == []
        assert client.post("/other", content=b"image").text == "5 bytes"
    assert client.post("/predict", content=b"image").text == "5 bytes"


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which problems are delayed, in place of the delays."""
    delays: list[float] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    # asyncio's own is that of other tests' services too
    monkeypatch.setattr("service.http.responses.asyncio", SimpleNamespace(sleep=sleep))
    return delays


@pytest.mark.parametrize(
    ("problem", "delay_s"),
    [(Overloaded("", 0.5), 0), (ShareExceeded("", 0.5), 0.5), (ShareExceeded("", 60), 1),
     (QuotaExceeded("", 60), 1)],
)  # fmt: skip
@pytest.mark.parametrize("is_read", [False, True])
def test_refusals_of_a_client_above_its_share_are_delayed(delays, problem, delay_s, is_read):
    def refuse(request: object) -> None:
        raise problem

    app = FastAPI()
    add_problem_handlers(app)
    app.add_api_route("/predict", refuse, methods=["POST"])
    client = TestClient(guarded(app) if is_read else guarded(app, refuse))
    assert client.post("/predict", params={"request": ""}).json()["code"] == problem.code
    assert delays == [delay_s]


def test_one_client_cannot_ask_for_the_page_without_end(model, delays) -> None:
    client = TestClient(app_of(model, page_requests_per_minute=1))
    assert client.get("/openapi.json").status_code == 200
    for path in ("/", "/page/main.js", "/docs", "/openapi.json", "/docs/swagger-ui.css"):
        response = client.get(path)
        assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
        assert 1 <= int(response.headers["Retry-After"]) <= 60
    assert delays == [1] * 5
    for path in ("/livez", "/readyz", "/metrics", "/models", "/predict"):
        assert client.get(path).status_code != 429


def test_a_client_over_its_decoding_quota_is_refused_before_its_body_is_read(
    client, quota, bodies_read
) -> None:
    quota.charge("another", 1000)
    assert client.post("/predict", content=b"image").status_code == 200
    quota.charge(CLIENT, 90)
    response = client.post("/predict", content=b"image")
    assert (response.status_code, response.json()["code"]) == (429, "quota_exceeded")
    assert 25 <= int(response.headers["Retry-After"]) <= 30
    assert bodies_read == ["/predict"]


MAX_BYTES = 100_000
STALL_S = 1.0
UPLOAD_S = 1.0
HEAD = b"POST /predict HTTP/1.1\r\nHost: test\r\nContent-Type: image/png\r\n"
LONG = HEAD + b"Content-Length: 1000\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
VALID = HEAD + b"Content-Length: 4\r\n\r\nsome"


@pytest.fixture(scope="module")
def limited_port() -> Iterator[int]:
    """The port of a server that accepts three bodies of the maximum size in flight."""
    bodies = settings_of(
        "bodies",
        max_bytes=MAX_BYTES,
        upload_timeout_s=SOCKET_TIMEOUT_S,
        stall_timeout_s=SOCKET_TIMEOUT_S,
        max_bytes_in_flight=3 * MAX_BYTES,
    )
    with run_server(plain_app(bodies=bodies)) as limited_port:
        yield limited_port


@pytest.fixture(scope="module")
def short_stall() -> Iterator[int]:
    """The port of a server with a short timeout between the pieces of a body."""
    bodies = settings_of("bodies", upload_timeout_s=SOCKET_TIMEOUT_S, stall_timeout_s=STALL_S)
    with run_server(plain_app(bodies=bodies)) as limited_port:
        yield limited_port


@pytest.fixture(scope="module")
def short_upload() -> Iterator[int]:
    """The port of a server with a short timeout for a whole body."""
    bodies = settings_of("bodies", upload_timeout_s=UPLOAD_S, stall_timeout_s=UPLOAD_S)
    with run_server(plain_app(bodies=bodies)) as limited_port:
        yield limited_port


@pytest.fixture(autouse=True)
def still_serves(limited_port) -> Iterator[None]:
    """Checks after every test that the next valid request succeeds."""
    yield
    assert exchange(limited_port, VALID).status == 200


def chunk(size: int) -> bytes:
    return f"{size:x}\r\n".encode() + bytes(size) + b"\r\n"


def test_an_expected_100_continue_is_not_sent_for_a_refused_body(limited_port) -> None:
    response = exchange(
        limited_port, HEAD + b"Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n"
    )
    assert response.status == 413


def test_a_chunked_body_over_the_limit_is_refused_before_its_end(limited_port) -> None:
    with connect(limited_port) as connection:
        connection.sendall(CHUNKED + chunk(60_000))
        connection.sendall(chunk(60_000))
        response = read_response(connection)  # before the end of the body
        assert (response.status, response.problem["code"]) == (413, "body_too_large")
        assert is_closed(connection)


def test_a_body_that_stalls_is_closed_with_408(short_stall) -> None:
    starts = [head + begun for head in (LONG, CHUNKED) for begun in (b"", b"8\r\nsome")]
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(short_stall)) for _ in starts]
        for connection, start in zip(connections, starts, strict=True):
            connection.sendall(start)
        for connection in connections:
            response = read_response(connection)
            assert (response.status, response.problem["code"]) == (408, "upload_too_slow")
            assert is_closed(connection)


def test_a_slowly_sent_body_is_closed_with_408(short_upload) -> None:
    with connect(short_upload) as connection:
        connection.sendall(LONG)
        connection.settimeout(UPLOAD_S / 10)
        while True:
            connection.sendall(b"x")
            try:
                response = read_response(connection)
                break
            except TimeoutError:
                continue
        assert response.status == 408


def test_announced_bytes_refuse_nobody(limited_port) -> None:
    with ExitStack() as stack:
        for head in (*[HEAD + f"Content-Length: {MAX_BYTES}\r\n\r\n".encode()] * 30, CHUNKED):
            stack.enter_context(connect(limited_port)).sendall(head + b"1\r\nx")
        assert exchange(limited_port, PROBE).status == 200  # the server has processed the headers
        assert exchange(limited_port, LONG + bytes(1000)).status == 200


def limited(read: list[bytes], **settings: object) -> ASGIApp:
    """An app behind the limits; `read` gets the bodies that its route has read."""
    app = FastAPI()
    add_problem_handlers(app)

    @app.post("/{path}")
    async def route(request: Request) -> None:
        read.append(await request.body())

    bodies = settings_of("bodies", **settings)
    return guarded(app, bodies=bodies, max_bytes_by_path={"/large": 1000})


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_may_have_exactly_the_limit_of_its_path(is_chunked) -> None:
    read: list[bytes] = []
    client = TestClient(limited(read, max_bytes=100))
    for path, size, status in (
        ("/small", 100, 200), ("/small", 101, 413), ("/large", 1000, 200), ("/large", 1001, 413)
    ):  # fmt: skip
        content = iter([bytes(size)]) if is_chunked else bytes(size)
        assert client.post(path, content=content).status_code == status
    assert list(map(len, read)) == [100, 1000]


def test_a_body_that_is_alone_may_exceed_the_bytes_in_flight() -> None:
    client = TestClient(limited([], max_bytes=100, max_bytes_in_flight=1))
    assert client.post("/small").status_code == 200
    assert client.post("/small", content=b"xy").status_code == 200


class Arriving:
    """A request whose body arrives in pieces; `closes` tells whether its connection ends."""

    def __init__(self, app: Any, client: str, declared: int) -> None:
        self._pieces: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.sent: list[Any] = []
        scope = {
            "type": "http", "method": "POST", "path": "/small", "raw_path": b"/small",
            "query_string": b"", "headers": [(b"content-length", b"%d" % declared)],
            "client": (client, 1),
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._pieces.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def receive(self, size: int, more: bool = True) -> None:
        await self._arrive({"type": "http.request", "body": bytes(size), "more_body": more})

    async def disconnect(self) -> None:
        await self._arrive({"type": "http.disconnect"})

    async def _arrive(self, message: dict[str, object]) -> None:
        self._pieces.put_nowait(message)
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def closes(self) -> bool:
        return (b"connection", b"close") in self.sent[0]["headers"]


async def test_clients_share_the_bytes_in_flight() -> None:
    app = limited([], max_bytes=1000, max_bytes_in_flight=900)
    first, second = Arriving(app, "10.0.0.1", 1000), Arriving(app, "10.0.0.1", 400)
    await first.receive(250)
    await second.receive(150)
    other = Arriving(app, "10.0.0.2", 200)
    await second.receive(150)
    assert (first.status, second.status) == (None, 503)
    assert second.closes
    await other.receive(200, more=False)
    assert (other.status, other.closes) == (200, False)
    await first.receive(50, more=False)
    assert first.status == 200
    again = Arriving(app, "10.0.0.1", 400)  # all bytes are free again
    await again.receive(400, more=False)
    assert again.status == 200


async def test_a_disconnect_during_the_upload_frees_its_bytes_and_reaches_no_route() -> None:
    read: list[bytes] = []
    app = limited(read, max_bytes=100, max_bytes_in_flight=100)
    for _ in range(3):
        upload = Arriving(app, "10.0.0.1", 80)
        await upload.receive(60)
        await upload.disconnect()
        assert upload.status == 499
    assert read == []
