"""Problems: one exception class for each error code of the HTTP contract (RFC 9457).

The service raises the classes below RequestRefused and ServiceFailed; the SDK raises them again
from a problem document. The client alone raises the others.

Problem
├── UnreadableFile       unreadable_file       a local image file cannot be read
├── MetadataNotRemoved   metadata_not_removed  a file was not sent: its metadata would be sent too
├── NoAnswer             no_answer             the service sent no response
│   ├── Unreachable      unreachable           no connection can be made
│   ├── ConnectionLost   connection_lost       the connection ended before the response
│   └── TimedOut         timed_out             the response did not arrive in time
├── UnexpectedAnswer     unexpected_answer     the response does not follow the contract
├── RequestRefused       4xx refused
│   ├── BadRequest       400 bad_request
│   │   ├── MalformedRequest   malformed_request
│   │   └── MalformedBody      malformed_body
│   ├── NotAuthenticated 401 not_authenticated
│   ├── ForeignOrigin    403 foreign_origin
│   ├── NotFound         404 not_found
│   │   ├── UnknownModel       unknown_model
│   │   ├── UnknownRequest     unknown_request
│   │   └── NoAuditLog         no_audit_log
│   ├── MethodNotAllowed 405 method_not_allowed
│   ├── NotAcceptable    406 not_acceptable
│   ├── UploadTooSlow    408 upload_too_slow
│   ├── BodyTooLarge     413 body_too_large
│   ├── UnsupportedMedia 415 unsupported_media
│   ├── MisdirectedRequest  421 misdirected_request
│   ├── Unprocessable    422 unprocessable
│   │   ├── InvalidParameter   invalid_parameter
│   │   ├── InvalidUpload      invalid_upload
│   │   ├── UnusableImage      unusable_image
│   │   └── PolicyNotApplicable  policy_not_applicable
│   ├── QuotaExceeded    429 quota_exceeded
│   └── HeadersTooLarge  431 headers_too_large
└── ServiceFailed        5xx service_failed
    ├── InternalError    500 internal_error
    ├── ModelFailure     500 model_failure
    ├── Unavailable      503 unavailable
    │   ├── NotReady           not_ready
    │   ├── Overloaded         overloaded
    │   ├── OutOfMemory        out_of_memory
    │   └── AuditUnavailable   audit_unavailable
    └── DeadlinePassed   504 deadline_passed

A detail never repeats what the client sent, except the name of a parameter.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """Base of every reason for which a request has no result.

    Attributes:
        code: Stable, for programs.
        status: HTTP status, None without a response.
        title: Text for people.
        detail: Text for people.
        request_id: The id under which the service logged the request.
        retry_after_s: Seconds after which a new attempt is useful, None if unknown.
        file: The path of the image that a client was to send, None without one.
    """

    exit_status: ClassVar[int] = 1
    code: str = "problem"
    status: int | None = None
    title: str = "The request has no result"

    def __init_subclass__(
        cls, *, code: str | None = None, status: int | None = None, title: str | None = None
    ) -> None:
        cls.code = code or cls.code
        cls.status = status or cls.status
        cls.title = title or cls.title

    def __init__(
        self,
        detail: str,
        retry_after_s: float | None = None,
        *,
        code: str | None = None,
        status: int | None = None,
        title: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.status = self.status if status is None else status
        self.title = title or self.title
        self.request_id = request_id
        self.retry_after_s = retry_after_s
        self.file: str | None = None

    def __str__(self) -> str:
        text = f"{self.title}: {self.detail}"
        return text if self.file is None else f"{self.file}: {text}"


class UnreadableFile(Problem, code="unreadable_file", title="The file cannot be read"):
    """A local image file cannot be read."""


class MetadataNotRemoved(
    Problem, code="metadata_not_removed", title="The metadata cannot be removed"
):
    """The metadata of a local file cannot be removed, so that it was not sent."""


class NoAnswer(Problem, code="no_answer", title="The service sent no response"):
    """The service sent no response."""


class Unreachable(NoAnswer, code="unreachable", title="The service cannot be reached"):
    """No connection to the service can be made."""


class ConnectionLost(NoAnswer, code="connection_lost", title="The connection was lost"):
    """The connection ended before the response was complete."""


class TimedOut(NoAnswer, code="timed_out", title="The response did not arrive in time"):
    """The response did not arrive in time."""


class UnexpectedAnswer(
    Problem, code="unexpected_answer", title="The response is not one of this service"
):
    """The response does not follow the contract; the address may belong to another server."""


class RequestRefused(Problem, code="refused", title="The request was refused"):
    """The request was refused (4xx)."""


class BadRequest(
    RequestRefused, status=400, code="bad_request", title="The request cannot be read"
):
    """The request cannot be read (400)."""


class MalformedRequest(BadRequest, code="malformed_request"):
    """The request is not valid HTTP, or its framing is ambiguous."""


class MalformedBody(BadRequest, code="malformed_body", title="The body cannot be parsed"):
    """The body cannot be parsed."""


class NotAuthenticated(
    RequestRefused, status=401, code="not_authenticated", title="An API key is required"
):
    """The request has no valid API key."""


class ForeignOrigin(
    RequestRefused, status=403, code="foreign_origin", title="Requests of other sites are refused"
):
    """The page of another site sent the request to a service without keys."""


class NotFound(RequestRefused, status=404, code="not_found", title="No such resource"):
    """No resource has this address."""


class UnknownModel(NotFound, code="unknown_model", title="No such model"):
    """No served model has this name."""


class UnknownRequest(NotFound, code="unknown_request", title="No such request"):
    """The audit log has no answer of `/triage` with this request id to this client."""


class NoAuditLog(NotFound, code="no_audit_log", title="The service keeps no audit log"):
    """Decisions are recorded in the audit log only, and the service runs without one."""


class MethodNotAllowed(
    RequestRefused, status=405, code="method_not_allowed", title="The method is not allowed here"
):
    """The resource does not support this method."""


class NotAcceptable(
    RequestRefused, status=406, code="not_acceptable", title="No accepted media type is available"
):
    """The request accepts none of the media types of the answer."""


class UploadTooSlow(
    RequestRefused, status=408, code="upload_too_slow", title="The upload took too long"
):
    """The body was not complete by its deadline."""


class BodyTooLarge(
    RequestRefused, status=413, code="body_too_large", title="The body is too large"
):
    """The body is over the size limit; the rest of it is not read."""


class UnsupportedMedia(
    RequestRefused, status=415, code="unsupported_media", title="The media type is not supported"
):
    """The body is neither multipart nor a JPEG, PNG or WebP image."""


class MisdirectedRequest(
    RequestRefused,
    status=421,
    code="misdirected_request",
    title="The host is not one of this service",
):
    """The request names a host that is not one of the service."""


class Unprocessable(
    RequestRefused, status=422, code="unprocessable", title="The request cannot be processed"
):
    """The request is well-formed but cannot be processed (422)."""


class InvalidParameter(Unprocessable, code="invalid_parameter", title="A parameter is invalid"):
    """A parameter or field is unknown, missing, repeated or out of range."""


class InvalidUpload(Unprocessable, code="invalid_upload", title="The upload is not one file"):
    """The upload is not exactly one non-empty file."""


class UnusableImage(Unprocessable, code="unusable_image", title="The image cannot be used"):
    """The image is damaged, too small, too large, animated or too expensive to decode."""


class PolicyNotApplicable(
    Unprocessable, code="policy_not_applicable", title="The triage policy does not fit the model"
):
    """The triage policy names classes that the model does not have; /predict still works."""


class QuotaExceeded(
    RequestRefused, status=429, code="quota_exceeded", title="The quota is used up"
):
    """The client has used up its requests or its decoding time."""


class HeadersTooLarge(
    RequestRefused, status=431, code="headers_too_large", title="The headers are too large"
):
    """The request's target and headers are over the size limit."""


class ServiceFailed(Problem, code="service_failed", title="The service failed"):
    """The service, or a proxy in front of it, failed (5xx)."""


class InternalError(ServiceFailed, status=500, code="internal_error"):
    """The service has a defect."""


class ModelFailure(ServiceFailed, status=500, code="model_failure", title="The model failed"):
    """The model failed on this image, or its output is not finite."""


class Unavailable(
    ServiceFailed, status=503, code="unavailable", title="The service is unavailable"
):
    """The service cannot process the request now (503)."""


class NotReady(Unavailable, code="not_ready", title="The service is not ready"):
    """The service is starting, stopping or has failed, or no decoder works."""


class Overloaded(Unavailable, code="overloaded", title="The service is overloaded"):
    """The queue is longer than can be processed in time; nothing of this request was run."""


class OutOfMemory(Unavailable, code="out_of_memory", title="The device is out of memory"):
    """The device has too little memory for this image, even in a smaller batch."""


class AuditUnavailable(
    Unavailable, code="audit_unavailable", title="The audit log cannot be written"
):
    """The audit log cannot be written or read; nothing is answered without it."""


class DeadlinePassed(
    ServiceFailed, status=504, code="deadline_passed", title="The deadline has passed"
):
    """The request waited until its deadline; it was not run."""


def _tree(base: type[Problem]) -> Iterator[type[Problem]]:
    yield base
    for problem_class in base.__subclasses__():
        yield from _tree(problem_class)


GROUPS = (BadRequest, Unprocessable, Unavailable, ServiceFailed)
"""Classes for clients to catch; the service raises only their subclasses."""

_RESPONSE_PROBLEMS = (*_tree(RequestRefused), *_tree(ServiceFailed))
SENT_BY_SERVICE = tuple(kind for kind in _RESPONSE_PROBLEMS if kind not in GROUPS)

_BY_CODE: Mapping[str, type[Problem]] = {kind.code: kind for kind in _RESPONSE_PROBLEMS}
_BY_STATUS: Mapping[int, type[Problem]] = {
    kind.status: kind for kind in reversed(_RESPONSE_PROBLEMS) if kind.status is not None
}  # the first class of a status in the tree: its group, or the most general one


def problem_class(code: str | None, status: int) -> type[Problem]:
    """The class of a response without a result; an unknown code falls back on the status.

    A later service or a proxy may send codes that are not in this module.
    """
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    for first_status, base in ((500, ServiceFailed), (400, RequestRefused)):
        if status >= first_status:
            return _BY_STATUS.get(status, base)
    return UnexpectedAnswer
