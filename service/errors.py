"""The problems a client can be told of, each with its HTTP status and stable code.

Problem
├── MalformedBody          400 malformed_body         the multipart body cannot be parsed
├── UnknownModel           404 unknown_model          no model of that name is served
├── BodyTooLarge           413 body_too_large         the body is over the limit
├── UnsupportedMedia       415 unsupported_media      neither multipart nor JPEG, PNG or WebP
├── InvalidParameter       422 invalid_parameter      a query parameter is unknown or out of range
├── InvalidUpload          422 invalid_upload         not exactly one file with some content
├── UnusableImage          422 unusable_image         broken, too small, too large or animated
├── ModelFailure           500 model_failure          the model gave no finite answer
└── NotReady               503 not_ready              the service is starting or stopping

Details never repeat what the client sent, but for the name of a parameter.
"""

from typing import ClassVar


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """A request that gets no answer; becomes `application/problem+json` (RFC 9457)."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    title: ClassVar[str] = "The service failed"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class MalformedBody(Problem):
    """The multipart body cannot be parsed."""

    status, code, title = 400, "malformed_body", "The body cannot be parsed"


class UnknownModel(Problem):
    """No model of that name is served."""

    status, code, title = 404, "unknown_model", "No such model"


class BodyTooLarge(Problem):
    """The body is over the limit; what is left of it is not read."""

    status, code, title = 413, "body_too_large", "The body is too large"


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


class ModelFailure(Problem):
    """The model gave no finite answer for this image."""

    status, code, title = 500, "model_failure", "The model failed"


class NotReady(Problem):
    """The service is starting or stopping."""

    status, code, title = 503, "not_ready", "The service is not ready"
