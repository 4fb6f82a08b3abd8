"""The OpenAPI document: the description of the interface, and the responses of its routes."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from itertools import groupby
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from eulerlora_contract import problems
from eulerlora_contract.answers import ProblemDocument
from eulerlora_contract.problems import Problem
from service.auth.access import needs_key
from service.http.responses import JSON, PROBLEM_JSON, problem_document, problem_headers
from service.telemetry.logs import REQUEST_ID_HEADER

_API_VERSION = "1.0.0"
"""Of the interface, not of the package; docs/how-to/serve.md has the compatibility promise."""

PREDICTIONS, TRIAGE, MODELS, OPERATIONS = "predictions", "triage", "models", "operations"

DESCRIPTION: dict[str, Any] = {
    "title": "EulerLoRA",
    "version": _API_VERSION,
    "summary": "Image classification with uncertainty, and triage under a policy.",
    "description": (
        "Probabilities, shares and scores have no unit, entropies are in nats, sizes in pixels or "
        "bytes. Fractional numbers have 6 significant digits; labels, flags and dispositions are "
        "decided before rounding.\n\n"
        "**Compatibility.** Within major version 1, paths, parameters, fields and codes keep their "
        "names and meanings, and a valid request stays valid. Later versions may add optional "
        "parameters, fields, and codes of problems and warnings: clients ignore fields that they "
        "do not know, and treat an unknown code by the HTTP status. Texts may change."
    ),
    "openapi_tags": [
        {"name": PREDICTIONS, "description": "Class probabilities and uncertainty of images."},
        {"name": TRIAGE, "description": "Suggested next steps under the triage policy."},
        {"name": MODELS, "description": "The served models."},
        {"name": OPERATIONS, "description": "Probes and metrics; they need no key."},
    ],
    "docs_url": None,  # FastAPI's pages load scripts from another host
    "redoc_url": None,
    "generate_unique_id_function": lambda route: route.name,
}

_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key."},
}
"""How keys are sent; `service.auth` checks them before any route runs."""

OPEN_PROBLEMS = (
    problems.MalformedRequest, problems.BodyTooLarge, problems.HeadersTooLarge,
    problems.InternalError, problems.Overloaded,
)  # fmt: skip
"""Problems of every route."""

KEYED_PROBLEMS = (
    *OPEN_PROBLEMS, problems.NotReady, problems.NotAuthenticated, problems.QuotaExceeded,
    problems.ForeignOrigin, problems.MisdirectedRequest,
)  # fmt: skip
"""Problems of every route that needs a key if the service has keys."""

UPLOAD_PROBLEMS = (
    *KEYED_PROBLEMS, problems.MalformedBody, problems.UnknownModel, problems.UploadTooSlow,
    problems.UnsupportedMedia, problems.InvalidParameter, problems.InvalidUpload,
    problems.UnusableImage, problems.ModelFailure, problems.OutOfMemory,
    problems.AuditUnavailable, problems.DeadlinePassed,
)  # fmt: skip
"""Problems of every route that receives images."""

_HEADER_DESCRIPTIONS = {
    REQUEST_ID_HEADER: "The id of the request: the sent one if it is well-formed, or a new one.",
    "Server-Timing": "Milliseconds for decoding, queue and model; of a batch, the longest.",
    "Cache-Control": "`no-store`: results about patients are not cached.",
    "Retry-After": "Seconds after which a new attempt is useful.",
    "WWW-Authenticate": "The scheme of the key.",
    "Connection": "`close`, if a part of the request was not read.",
}
TEXT: Mapping[str, Any] = {"schema": {"type": "string"}}
"""The content of a response in another format than JSON."""

_EXAMPLE_ID = "3c9d5fb0b2f64c55a7a54c1a1d5f7a11"


def documented(
    operation: str,
    kinds: Iterable[type[Problem]],
    headers: Sequence[str] = (),
    content: Mapping[str, Any] = MappingProxyType({}),
) -> dict[int | str, dict[str, Any]]:
    """The responses of an operation: its example, and its problems by status.

    Args:
        operation: Its name in the file of examples.
        kinds: The problems that it may answer with.
        headers: Of the successful response, beyond the request id.
        content: Of the successful response beside JSON, by media type.
    """
    success: dict[str, Any] = {"headers": _described((REQUEST_ID_HEADER, *headers))}
    example = _examples().get(operation)
    if content or example is not None:
        in_json = {} if example is None else {JSON: {"example": example}}
        success["content"] = {**in_json, **content}
    ordered = sorted(set(kinds), key=lambda kind: (kind.status or 0, kind.code))
    by_status = groupby(ordered, key=lambda kind: kind.status)
    return {200: success, **{status or 0: _problems(list(same)) for status, same in by_status}}


def query_parameters(query_type: type[BaseModel]) -> dict[str, Any]:
    """What an operation says of its query, which its handler parses (`parsed_query`)."""
    parameters = []
    for name, schema in query_type.model_json_schema()["properties"].items():
        described = {"description": schema["description"], "required": False, "schema": schema}
        parameters.append({"name": name, "in": "query", **described})
    return {"parameters": parameters} if parameters else {}


def complete_openapi(
    app: FastAPI, schemas: Mapping[str, Mapping[str, Any]], *, has_keys: bool
) -> None:
    """Completes the OpenAPI document of an application whose routes are complete.

    Adds schemas, and the keys of the operations that need one if the service has keys.

    Generators of clients do not read `const`: it becomes an `enum` of one value. They take an
    integer without a format as one of 32 bits, which a seed overflows, and a number as one with 24
    bits of precision: each gets a format. Null is no default: it means that a value is absent.
    """
    document = app.openapi()
    documented_schemas = document["components"]["schemas"]
    documented_schemas.update(schemas)
    if has_keys:
        document["components"]["securitySchemes"] = _KEY_SCHEMES
        for path, operations in document["paths"].items():
            if needs_key(path):
                for operation in operations.values():
                    operation["security"] = [{name: []} for name in _KEY_SCHEMES]
    for name, schema in documented_schemas.items():
        if "enum" in schema:  # constants share one scope in Go, and two enums have `unfamiliar`
            schema["x-enum-varnames"] = [f"{name}_{value}".upper() for value in schema["enum"]]
    app.openapi_schema = _for_generators(document)


def _for_generators(value: Any) -> Any:
    if isinstance(value, list):
        return [_for_generators(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    values = {name: _for_generators(entry) for name, entry in value.items()}
    if "const" in values and not isinstance(values["const"], dict):  # no property of this name
        values["enum"] = [values.pop("const")]
    if "default" in values and values["default"] is None:
        del values["default"]
    if values.get("type") == "integer":
        greatest = values.get("maximum", max(values.get("enum", [math.inf])))
        values.setdefault("format", "int32" if greatest < 2**31 else "int64")
    if values.get("type") == "number":
        values.setdefault("format", "double")
    return values


def _problems(kinds: Sequence[type[Problem]]) -> dict[str, Any]:
    status = HTTPStatus(kinds[0].status or 0)
    examples = {}
    for kind in kinds:
        document = problem_document(kind("What was expected, and what was given."), _EXAMPLE_ID)
        value = document.model_dump(exclude_unset=True)
        examples[kind.code] = {"summary": kind.title, "value": value}
    content = {
        "schema": {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"},
        "examples": examples,
    }
    headers = (
        REQUEST_ID_HEADER,
        *(name for kind in kinds for name in problem_headers(kind("", 1.0))),
    )
    if status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers = tuple(name for name in headers if name != "Retry-After")
    return {
        "description": f"{status.phrase}: " + "; ".join(kind.title for kind in kinds) + ".",
        "content": {PROBLEM_JSON: content},
        "headers": _described(headers),
    }


def _described(headers: Iterable[str]) -> dict[str, Any]:
    schema = {"schema": {"type": "string"}}
    return {name: {"description": _HEADER_DESCRIPTIONS[name], **schema} for name in headers}


@cache
def _examples() -> Mapping[str, Any]:
    file = files("service").joinpath("documentation", "examples.json")
    examples: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return examples
