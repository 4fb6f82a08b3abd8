"""The problems a client can be told of, each with its HTTP status and stable code.

Problem                     500 internal_error         a defect of the service
├── MalformedRequest        400 malformed_request      what came is not HTTP, or not safely so
├── MalformedBody           400 malformed_body         the multipart body cannot be parsed
├── NotAuthenticated        401 not_authenticated      no key, or not one that is known
├── UnknownModel            404 unknown_model          no model of that name is served
├── UploadTooSlow           408 upload_too_slow        the body was not whole by its deadline
├── BodyTooLarge            413 body_too_large         the body is over the limit
├── UnsupportedMedia        415 unsupported_media      neither multipart nor JPEG, PNG or WebP
├── InvalidParameter        422 invalid_parameter      a query parameter is unknown or out of range
├── InvalidUpload           422 invalid_upload         not exactly one file with some content
├── UnusableImage           422 unusable_image         broken, too small, too large or animated
├── PolicyNotApplicable     422 policy_not_applicable  the triage policy does not fit the model
├── QuotaExceeded           429 quota_exceeded         more requests than the key may make
├── HeadersTooLarge         431 headers_too_large      target and headers are over the limit
├── ModelFailure            500 model_failure          the model gave no finite answer
├── NotReady                503 not_ready              the service is starting or stopping
├── Overloaded              503 overloaded             more work than can be done in time
├── OutOfMemory             503 out_of_memory          the device had no memory for this image
├── AuditUnavailable        503 audit_unavailable      the audit log cannot be written
└── DeadlinePassed          504 deadline_passed        the answer would have come too late

Details never repeat what the client sent, but for the name of a parameter.
"""

import math
from typing import ClassVar


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """A request that gets no answer; becomes `application/problem+json` (RFC 9457).

    retry_after_s: seconds after which another attempt makes sense, where that is known; it
    becomes the `Retry-After` header. closes: the rest of the body is left unread, so that the
    connection cannot be used again; `body_unread` is what a class says of its own.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The service failed"
    body_unread: ClassVar[bool] = False

    def __init__(
        self, detail: str, retry_after_s: float | None = None, closes: bool | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.closes = self.body_unread if closes is None else closes

    def headers(self) -> dict[str, str]:
        """The headers that its response has besides the usual ones."""
        headers = {"Connection": "close"} if self.closes else {}
        if self.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))  # RFC 9110, 10.2.3
        return headers


class MalformedRequest(Problem):
    """What came is not HTTP, or not in a form that is safe to read."""

    status, code, title = 400, "malformed_request", "The request cannot be read"
    body_unread = True


class MalformedBody(Problem):
    """The multipart body cannot be parsed."""

    status, code, title = 400, "malformed_body", "The body cannot be parsed"


class NotAuthenticated(Problem):
    """No key was sent, or not one that is known."""

    status, code, title = 401, "not_authenticated", "A key is wanted"
    body_unread = True

    def headers(self) -> dict[str, str]:
        """With the challenge that a 401 must carry (RFC 9110, 15.5.2)."""
        return {**super().headers(), "WWW-Authenticate": "Bearer"}


class UnknownModel(Problem):
    """No model of that name is served."""

    status, code, title = 404, "unknown_model", "No such model"


class UploadTooSlow(Problem):
    """The body was not whole by its deadline."""

    status, code, title = 408, "upload_too_slow", "The upload took too long"
    body_unread = True


class BodyTooLarge(Problem):
    """The body is over the limit; what is left of it is not read."""

    status, code, title = 413, "body_too_large", "The body is too large"
    body_unread = True


class UnsupportedMedia(Problem):
    """The body is neither multipart nor an image of a supported format."""

    status, code, title = 415, "unsupported_media", "The media type is not supported"


class InvalidParameter(Problem):
    """A query parameter is unknown, repeated or out of range."""

    status, code, title = 422, "invalid_parameter", "A parameter is invalid"


class InvalidUpload(Problem):
    """The upload is not exactly one file with some content."""

    status, code, title = 422, "invalid_upload", "The upload is not one file"


class UnusableImage(Problem):
    """The image is broken, too small, too large or animated."""

    status, code, title = 422, "unusable_image", "The image cannot be used"


class PolicyNotApplicable(Problem):
    """The triage policy speaks of classes that the model does not have; /predict answers."""

    status, code, title = 422, "policy_not_applicable", "The triage policy does not fit the model"


class QuotaExceeded(Problem):
    """More requests than the key may make in a minute."""

    status, code, title = 429, "quota_exceeded", "The quota is used up"
    body_unread = True


class HeadersTooLarge(Problem):
    """The request's headers are over the limit."""

    status, code, title = 431, "headers_too_large", "The headers are too large"
    body_unread = True


class ModelFailure(Problem):
    """The model gave no finite answer for this image."""

    status, code, title = 500, "model_failure", "The model failed"


class NotReady(Problem):
    """The service is starting or stopping."""

    status, code, title = 503, "not_ready", "The service is not ready"


class Overloaded(Problem):
    """More work waits than can be done in time; nothing of this request was run."""

    status, code, title = 503, "overloaded", "The service is overloaded"


class OutOfMemory(Problem):
    """The device had no memory for this image, not even in a smaller batch."""

    status, code, title = 503, "out_of_memory", "The device is out of memory"


class AuditUnavailable(Problem):
    """The audit log is on and cannot be written, so that no decision is given."""

    status, code, title = 503, "audit_unavailable", "The audit log cannot be written"


class DeadlinePassed(Problem):
    """The answer would have come after its deadline; it was not computed."""

    status, code, title = 504, "deadline_passed", "The deadline has passed"
