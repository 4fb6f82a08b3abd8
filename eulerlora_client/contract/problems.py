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
│   │   └── UnknownModel       unknown_model
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

    code: stable, for programs. status: HTTP status, None without a response. title, detail: text
    for people. request_id: the id under which the service logged the request. retry_after_s:
    seconds after which a new attempt is useful, None if unknown.
    """

    exit_status: ClassVar[int] = 1
    code: str = "problem"
    status: int | None = None
    title: str = "The request has no result"

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

    def __str__(self) -> str:
        return f"{self.title}: {self.detail}"


class UnreadableFile(Problem):
    """A local image file cannot be read."""

    code, title = "unreadable_file", "The file cannot be read"


class MetadataNotRemoved(Problem):
    """The metadata of a local file cannot be removed, so that it was not sent."""

    code, title = "metadata_not_removed", "The metadata cannot be removed"


class NoAnswer(Problem):
    """The service sent no response."""

    code, title = "no_answer", "The service sent no response"


class Unreachable(NoAnswer):
    """No connection to the service can be made."""

    code, title = "unreachable", "The service cannot be reached"


class ConnectionLost(NoAnswer):
    """The connection ended before the response was complete."""

    code, title = "connection_lost", "The connection was lost"


class TimedOut(NoAnswer):
    """The response did not arrive in time."""

    code, title = "timed_out", "The response did not arrive in time"


class UnexpectedAnswer(Problem):
    """The response does not follow the contract; the address may belong to another server."""

    code, title = "unexpected_answer", "The response is not one of this service"


class RequestRefused(Problem):
    """The request was refused (4xx)."""

    code, title = "refused", "The request was refused"


class BadRequest(RequestRefused):
    """The request cannot be read (400)."""

    status, code, title = 400, "bad_request", "The request cannot be read"


class MalformedRequest(BadRequest):
    """The request is not valid HTTP, or its framing is ambiguous."""

    code = "malformed_request"


class MalformedBody(BadRequest):
    """The multipart body cannot be parsed."""

    code, title = "malformed_body", "The body cannot be parsed"


class NotAuthenticated(RequestRefused):
    """The request has no valid API key."""

    status, code, title = 401, "not_authenticated", "An API key is required"


class ForeignOrigin(RequestRefused):
    """The page of another site sent the request to a service without keys."""

    status, code, title = 403, "foreign_origin", "Requests of other sites are refused"


class NotFound(RequestRefused):
    """No resource has this address."""

    status, code, title = 404, "not_found", "No such resource"


class UnknownModel(NotFound):
    """No served model has this name."""

    code, title = "unknown_model", "No such model"


class MethodNotAllowed(RequestRefused):
    """The resource does not support this method."""

    status, code, title = 405, "method_not_allowed", "The method is not allowed here"


class NotAcceptable(RequestRefused):
    """The request accepts none of the media types of the answer."""

    status, code, title = 406, "not_acceptable", "No accepted media type is available"


class UploadTooSlow(RequestRefused):
    """The body was not complete by its deadline."""

    status, code, title = 408, "upload_too_slow", "The upload took too long"


class BodyTooLarge(RequestRefused):
    """The body is over the size limit; the rest of it is not read."""

    status, code, title = 413, "body_too_large", "The body is too large"


class UnsupportedMedia(RequestRefused):
    """The body is neither multipart nor a JPEG, PNG or WebP image."""

    status, code, title = 415, "unsupported_media", "The media type is not supported"


class MisdirectedRequest(RequestRefused):
    """The request names a host that is not one of the service."""

    status, code, title = 421, "misdirected_request", "The host is not one of this service"


class Unprocessable(RequestRefused):
    """The request is well-formed but cannot be processed (422)."""

    status, code, title = 422, "unprocessable", "The request cannot be processed"


class InvalidParameter(Unprocessable):
    """A query parameter is unknown, repeated or out of range."""

    code, title = "invalid_parameter", "A parameter is invalid"


class InvalidUpload(Unprocessable):
    """The upload is not exactly one non-empty file."""

    code, title = "invalid_upload", "The upload is not one file"


class UnusableImage(Unprocessable):
    """The image is damaged, too small, too large, animated or too expensive to decode."""

    code, title = "unusable_image", "The image cannot be used"


class PolicyNotApplicable(Unprocessable):
    """The triage policy names classes that the model does not have; /predict still works."""

    code, title = "policy_not_applicable", "The triage policy does not fit the model"


class QuotaExceeded(RequestRefused):
    """The client has used up its requests or its decoding time."""

    status, code, title = 429, "quota_exceeded", "The quota is used up"


class HeadersTooLarge(RequestRefused):
    """The request's target and headers are over the size limit."""

    status, code, title = 431, "headers_too_large", "The headers are too large"


class ServiceFailed(Problem):
    """The service, or a proxy in front of it, failed (5xx)."""

    code, title = "service_failed", "The service failed"


class InternalError(ServiceFailed):
    """The service has a defect."""

    status, code = 500, "internal_error"


class ModelFailure(ServiceFailed):
    """The model failed on this image, or its output is not finite."""

    status, code, title = 500, "model_failure", "The model failed"


class Unavailable(ServiceFailed):
    """The service cannot process the request now (503)."""

    status, code, title = 503, "unavailable", "The service is unavailable"


class NotReady(Unavailable):
    """The service is starting, stopping or has failed, or no decoder works."""

    code, title = "not_ready", "The service is not ready"


class Overloaded(Unavailable):
    """The queue is longer than can be processed in time; nothing of this request was run."""

    code, title = "overloaded", "The service is overloaded"


class OutOfMemory(Unavailable):
    """The device has too little memory for this image, even in a smaller batch."""

    code, title = "out_of_memory", "The device is out of memory"


class AuditUnavailable(Unavailable):
    """The audit log cannot be written; no decision is returned without it."""

    code, title = "audit_unavailable", "The audit log cannot be written"


class DeadlinePassed(ServiceFailed):
    """The request waited until its deadline; it was not run."""

    status, code, title = 504, "deadline_passed", "The deadline has passed"


def _tree(base: type[Problem]) -> Iterator[type[Problem]]:
    yield base
    for problem_class in base.__subclasses__():
        yield from _tree(problem_class)


GROUPS = (BadRequest, Unprocessable, Unavailable, ServiceFailed)
"""Classes for clients to catch; the service raises only their subclasses."""

RESPONSE_PROBLEMS = (*_tree(RequestRefused), *_tree(ServiceFailed))
SENT_BY_SERVICE = tuple(kind for kind in RESPONSE_PROBLEMS if kind not in GROUPS)

_BY_CODE: Mapping[str, type[Problem]] = {kind.code: kind for kind in RESPONSE_PROBLEMS}
_BY_STATUS: Mapping[int, type[Problem]] = {
    kind.status: kind for kind in reversed(RESPONSE_PROBLEMS) if kind.status is not None
}  # the first class of a status in the tree: its group, or the most general one


def problem_class(code: str | None, status: int) -> type[Problem]:
    """Returns the class of a response without a result; an unknown code falls back on the status.

    A later service or a proxy may send codes that are not in this module.
    """
    if code is not None and code in _BY_CODE:
        return _BY_CODE[code]
    for first_status, base in ((500, ServiceFailed), (400, RequestRefused)):
        if status >= first_status:
            return _BY_STATUS.get(status, base)
    return UnexpectedAnswer
