"""Checks of Host and Origin, HEAD, and the absence of redirects."""

from collections.abc import Iterator

import pytest
from starlette.datastructures import Headers

from eulerlora_client.contract.problems import Problem
from service.app import Options, create_service
from service.http.middleware import HostRules, hostname
from service.inference.engine import ServedModel, ServedModels
from service.lifecycle.phase import Lifecycle
from service.settings import ServiceSettings
from tests.service.real_server import connect, exchange, read_response, run_server

HOSTS = frozenset({"clinic.example", "::1"})
SAME_ORIGIN = HostRules(same_origin=True)


def code(rules: HostRules, **headers: str) -> str | None:
    try:
        rules.check(Headers(headers))
    except Problem as problem:
        return problem.code
    return None


@pytest.mark.parametrize(
    ("host", "accepted"),
    [("clinic.example", True), ("Clinic.Example:8443", True), ("clinic.example.", True),
     ("[::1]:8000", True), ("other.example", False), ("clinic.example.evil.example", False),
     ("", False), ("[::2]", False)],
)  # fmt: skip
def test_only_named_hosts_are_accepted(host: str, accepted: bool) -> None:
    assert code(HostRules(HOSTS), host=host) == (None if accepted else "misdirected_request")
    assert code(HostRules(None), host=host) is None


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [(None, True), ("https://clinic.example", True), ("http://CLINIC.example", True),
     ("https://evil.example", False), ("https://clinic.example:8443", False),
     ("https://clinic.example.evil.example", False), ("null", False), ("", False)],
)  # fmt: skip
def test_only_pages_of_the_service_itself_may_use_it_through_a_browser(origin, accepted) -> None:
    sent = {} if origin is None else {"origin": origin}
    expected = None if accepted else "foreign_origin"
    assert code(SAME_ORIGIN, host="clinic.example", **sent) == expected
    assert code(HostRules(), host="clinic.example", **sent) is None


def test_a_host_header_without_a_port_is_a_name() -> None:
    assert hostname("[2001:db8::1]") == "2001:db8::1"
    assert hostname("127.0.0.1") == "127.0.0.1"


@pytest.fixture(scope="module")
def port(model) -> Iterator[int]:
    """The port of a keyless service that is called `localhost`."""
    lifecycle = Lifecycle()
    lifecycle.become_ready()
    models = ServedModels([ServedModel.of(model)])
    options = Options(hosts=frozenset({"localhost"}))
    service = create_service(models, ServiceSettings(), lifecycle, options)
    with run_server(service.application) as port:
        yield port


def request(method: str, path: str, host: str = "localhost", headers: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode()


@pytest.mark.parametrize(
    ("host", "headers", "status", "problem"),
    [("evil.example", "", 421, "misdirected_request"),
     ("localhost", "Origin: http://evil.example\r\n", 403, "foreign_origin")],
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
    """Returns the headers of the next response and reads nothing after them."""
    received = bytearray()
    while not received.endswith(b"\r\n\r\n"):
        received += connection.recv(1)
    return bytes(received)


def test_head_is_recorded_as_head_of_its_route(port) -> None:
    assert exchange(port, request("HEAD", "/predict").replace(b"HEAD", b"PUT")).status == 405
    with connect(port) as connection:
        connection.sendall(request("HEAD", "/models/tiny"))
        assert b"HTTP/1.1 200" in read_response_without_body(connection)
    metrics = exchange(port, request("GET", "/metrics")).body.decode()
    assert 'method="HEAD",route="/models/{name}",status="200"' in metrics
