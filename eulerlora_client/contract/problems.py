"""Why there is no answer: one exception for each problem code of the service, and a few of ours.

ServiceProblem
├── UnreadableFile       unreadable_file       an image file cannot be read on this machine
├── NoAnswer             no_answer             the service gave no answer
│   ├── Unreachable      unreachable           no connection to it can be had
│   ├── ConnectionLost   connection_lost       the connection ended before the answer
│   └── TimedOut         timed_out             the answer did not come in time
├── UnexpectedAnswer     unexpected_answer     what answered does not keep the contract
├── RequestRefused       4xx refused
│   ├── BadRequest       400 bad_request
│   │   ├── MalformedRequest   malformed_request
│   │   └── MalformedBody      malformed_body
│   ├── NotAuthenticated 401 not_authenticated
│   ├── NotFound         404 not_found
│   │   └── UnknownModel       unknown_model
│   ├── MethodNotAllowed 405 method_not_allowed
│   ├── UploadTooSlow    408 upload_too_slow
│   ├── BodyTooLarge     413 body_too_large
│   ├── UnsupportedMedia 415 unsupported_media
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

A code that is not among them, of a later service or of what stands before it, is told by the
class of its status.
"""

from eulerlora.errors import EulerLoRAError


class ServiceProblem(EulerLoRAError):  # noqa: N818 - the word of RFC 9457
    """Base of every reason for which there is no answer.

    code: stable, for programs. status: of the HTTP response, None where there was none. title,
    detail: for people. request_id: under which the service logged it. retry_after_s: seconds
    after which another attempt makes sense, where the service said so.
    """

    code: str = "problem"
    status: int | None = None
    title: str = "There is no answer"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        status: int | None = None,
        title: str | None = None,
        request_id: str | None = None,
        retry_after_s: float | None = None,
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


class UnreadableFile(ServiceProblem):
    """An image file cannot be read on this machine."""

    code, title = "unreadable_file", "The file cannot be read"


class NoAnswer(ServiceProblem):
    """The service gave no answer."""

    code, title = "no_answer", "The service gave no answer"


class Unreachable(NoAnswer):
    """No connection to the service can be had."""

    code, title = "unreachable", "No service can be reached"


class ConnectionLost(NoAnswer):
    """The connection ended before the answer had come."""

    code, title = "connection_lost", "The connection was lost"


class TimedOut(NoAnswer):
    """The answer did not come in time."""

    code, title = "timed_out", "The answer did not come in time"


class UnexpectedAnswer(ServiceProblem):
    """What answered does not keep the contract: perhaps another server, or another address."""

    code, title = "unexpected_answer", "The answer is not one of this service"


class RequestRefused(ServiceProblem):
    """The request was refused (4xx)."""

    code, title = "refused", "The request was refused"


class BadRequest(RequestRefused):
    """The request cannot be read (400)."""

    status, code, title = 400, "bad_request", "The request cannot be read"


class MalformedRequest(BadRequest):
    """What came is not HTTP, or in a form that no two readers might read alike."""

    code = "malformed_request"


class MalformedBody(BadRequest):
    """The multipart body cannot be parsed."""

    code, title = "malformed_body", "The body cannot be parsed"


class NotAuthenticated(RequestRefused):
    """No key was sent, or not one that is known."""

    status, code, title = 401, "not_authenticated", "A key is wanted"


class NotFound(RequestRefused):
    """Nothing is served at this address."""

    status, code, title = 404, "not_found", "No such resource"


class UnknownModel(NotFound):
    """No model of that name is served."""

    code, title = "unknown_model", "No such model"


class MethodNotAllowed(RequestRefused):
    """The address does not take this method."""

    status, code, title = 405, "method_not_allowed", "The method is not allowed here"


class UploadTooSlow(RequestRefused):
    """The body was not whole by its deadline."""

    status, code, title = 408, "upload_too_slow", "The upload took too long"


class BodyTooLarge(RequestRefused):
    """The image file is over the service's limit."""

    status, code, title = 413, "body_too_large", "The body is too large"


class UnsupportedMedia(RequestRefused):
    """The file is neither JPEG, PNG nor WebP."""

    status, code, title = 415, "unsupported_media", "The media type is not supported"


class Unprocessable(RequestRefused):
    """The request is well-formed and cannot be answered (422)."""

    status, code, title = 422, "unprocessable", "The request cannot be answered"


class InvalidParameter(Unprocessable):
    """A parameter is unknown to the service or out of range."""

    code, title = "invalid_parameter", "A parameter is invalid"


class InvalidUpload(Unprocessable):
    """The upload is not one file with some content."""

    code, title = "invalid_upload", "The upload is not one file"


class UnusableImage(Unprocessable):
    """The image is broken, too small, too large or animated."""

    code, title = "unusable_image", "The image cannot be used"


class PolicyNotApplicable(Unprocessable):
    """The service's triage policy does not fit the model; it can still be asked to predict."""

    code, title = "policy_not_applicable", "The triage policy does not fit the model"


class QuotaExceeded(RequestRefused):
    """More requests than the key may make in a minute."""

    status, code, title = 429, "quota_exceeded", "The quota is used up"


class HeadersTooLarge(RequestRefused):
    """The request's headers are over the limit."""

    status, code, title = 431, "headers_too_large", "The headers are too large"


class ServiceFailed(ServiceProblem):
    """The service, or what stands before it, failed (5xx)."""

    code, title = "service_failed", "The service failed"


class InternalError(ServiceFailed):
    """A defect of the service."""

    status, code = 500, "internal_error"


class ModelFailure(ServiceFailed):
    """The model gave no finite answer for this image."""

    status, code, title = 500, "model_failure", "The model failed"


class Unavailable(ServiceFailed):
    """The service cannot answer now (503)."""

    status, code, title = 503, "unavailable", "The service cannot answer now"


class NotReady(Unavailable):
    """The service is starting or stopping."""

    code, title = "not_ready", "The service is not ready"


class Overloaded(Unavailable):
    """More work waits than can be done in time."""

    code, title = "overloaded", "The service is overloaded"


class OutOfMemory(Unavailable):
    """The device had no memory for this image."""

    code, title = "out_of_memory", "The device is out of memory"


class AuditUnavailable(Unavailable):
    """The audit log cannot be written, so that no decision is given."""

    code, title = "audit_unavailable", "The audit log cannot be written"


class DeadlinePassed(ServiceFailed):
    """The answer would have come after its deadline; it was not computed."""

    status, code, title = 504, "deadline_passed", "The deadline has passed"
