"""The OpenAPI document: complete, valid, and true of the answers."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from clinic.tests.service.conftest import app_of
from eulerlora_contract.problems import SENT_BY_SERVICE

JSON, PROBLEM = "application/json", "application/problem+json"
NO_ROUTE = {"not_found", "method_not_allowed", "refused"}  # of requests that reach no operation
PNG = {"Content-Type": "image/png"}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document(client) -> Json:
    described: Json = client.get("/openapi.json").json()
    return described


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def check(document: Json, schema: Json, instance: Any) -> None:
    """Checks an instance against a schema of the document with an independent validator."""
    Draft202012Validator({**schema, "components": document["components"]}).validate(instance)


def test_the_document_is_valid_openapi(document) -> None:
    validate(document)
    assert document["info"]["version"] == "1.0.0"
    assert "Compatibility" in document["info"]["description"]


def test_an_operation_has_a_short_id_a_described_tag_and_a_description(document) -> None:
    ids = {operation["operationId"] for _, _, operation in operations(document)}
    assert ids == {
        "predict", "predict_batch", "embed", "triage", "triage_batch", "decide", "triage_policy",
        "list_models", "describe_model",
        "model_card", "livez", "readyz", "scrape",
    }  # fmt: skip
    tags = {tag["name"] for tag in document["tags"] if tag["description"]}
    for _, path, operation in operations(document):
        assert len(operation["tags"]) == 1 and set(operation["tags"]) <= tags, path
        assert operation["description"], path


def test_every_problem_of_the_service_is_documented_with_its_status(document) -> None:
    statuses = {kind.code: kind.status for kind in SENT_BY_SERVICE}
    documented = set()
    for _, path, operation in operations(document):
        for status, response in operation["responses"].items():
            if status == "200":
                continue
            content = response["content"][PROBLEM]
            assert content["schema"] == {"$ref": "#/components/schemas/ProblemDocument"}
            for code, example in content["examples"].items():
                assert statuses[code] == int(status), (path, code)
                assert example["value"]["code"] == code
                check(document, content["schema"], example["value"])
                documented.add(code)
    assert documented == {kind.code for kind in SENT_BY_SERVICE} - NO_ROUTE


def test_generators_of_clients_can_read_every_schema(document) -> None:
    """`tests/service/generated` runs two of them; they read no `const`, and `{}` as any value."""
    assert '"const":' not in json.dumps(document)
    for _, path, operation in operations(document):
        for response in operation["responses"].values():
            for media_type, content in response["content"].items():
                schema = content["schema"]
                assert "$ref" in schema or schema == {"type": "string"}, (path, media_type)


def schemas_within(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from schemas_within(inner)


def test_a_number_has_a_format_that_holds_it(document) -> None:
    numbers = [one for one in schemas_within(document) if one.get("type") in ("integer", "number")]
    assert len(numbers) > 50
    for schema in numbers:
        if schema["type"] == "number":
            assert schema["format"] == "double", schema
        elif schema.get("maximum", max(schema.get("enum", [math.inf]))) >= 2**31:
            assert schema["format"] == "int64", schema
        else:
            assert schema["format"] in ("int32", "int64"), schema


def test_samples_of_a_query_are_text_of_the_accepted_values(document) -> None:
    parameters = [
        parameter
        for _, _, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["name"] == "samples"
    ]
    assert len(parameters) == 4
    for parameter in parameters:
        schema = parameter["schema"]
        assert schema["type"] == "string" and "anyOf" not in schema
        accepted = [text for text in map(str, range(1000)) if re.search(schema["pattern"], text)]
        assert accepted == [str(number) for number in range(1, 64 + 1)]
        assert re.search(schema["pattern"], "auto")


def test_no_parameter_is_a_union(document) -> None:
    for _, path, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            assert not {"anyOf", "oneOf"} & parameter["schema"].keys(), (path, parameter["name"])


def test_the_codes_are_listed_and_later_versions_may_add_some(document) -> None:
    schema = document["components"]["schemas"]["ProblemDocument"]["properties"]["code"]
    assert set(schema["x-extensible-enum"]) == {kind.code for kind in SENT_BY_SERVICE}
    assert "enum" not in schema


def test_every_example_of_a_response_matches_its_schema(document) -> None:
    for _, _, operation in operations(document):
        content = operation["responses"]["200"]["content"]
        if JSON in content:
            check(document, content[JSON]["schema"], content[JSON]["example"])


def test_every_route_answers_as_described(client, document, png) -> None:
    image = {"content": png, "headers": PNG}
    files = [("files", ("a", png)), ("files", ("b", b"no image"))]
    for path, options in (
        ("/predict?mode=stoch&detail=trajectories&coverage=0.9", image),
        ("/predict?mode=stoch&samples=auto", image),
        ("/predict?samples=4", image),
        ("/predict?model=other", image),
        ("/embed", image),
        ("/predict", {"content": b"text", "headers": {"Content-Type": "text/plain"}}),
        ("/predict/batch?mode=stoch", {"files": files}),
        ("/triage", image),  # the policy does not apply to the model
        ("/triage/batch", {"files": files}),
        ("/decisions", {"json": {}}),  # without an audit log
    ):
        answers(document, client.post(path, **options), path)
    for path in ("/triage/policy", "/models", "/models/tiny", "/livez", "/readyz"):
        answers(document, client.get(path), path)


def answers(document: Json, response: Any, target: str) -> None:
    """Checks a response against the schema and headers of its operation and status."""
    path = "/models/{name}" if target.startswith("/models/") else target.partition("?")[0]
    described = document["paths"][path][response.request.method.lower()]["responses"]
    declared = described[str(response.status_code)]
    media_type = response.headers["Content-Type"].partition(";")[0]
    body = response.json() if media_type.endswith("json") else response.text
    check(document, declared["content"][media_type]["schema"], body)
    if response.status_code == 200:
        assert set(declared["headers"]) <= {name.title() for name in response.headers} | {
            "X-Request-ID"
        }
    assert response.headers["X-Request-ID"]


def test_the_schema_of_a_batch_refuses_an_entry_that_is_neither_kind(document) -> None:
    schema = document["components"]["schemas"]["TriageBatch"]
    example = document["paths"]["/triage/batch"]["post"]["responses"]["200"]["content"][JSON]
    check(document, schema, example["example"])
    del example["example"]["results"][0]["prediction"]
    assert not Draft202012Validator({**schema, "components": document["components"]}).is_valid(
        example["example"]
    )


@pytest.mark.parametrize("path", ["/predict/batch", "/triage/batch"])
def test_an_entry_of_a_batch_fits_one_kind_without_required_fields(document, path) -> None:
    """Generated Java takes the first one that fits."""

    def without_required(schema: Json) -> Json:
        return {name: value for name, value in schema.items() if name != "required"}

    lenient = json.loads(json.dumps(document), object_hook=without_required)
    content = lenient["paths"][path]["post"]["responses"]["200"]["content"][JSON]
    name = content["schema"]["$ref"].rpartition("/")[2]
    kinds = lenient["components"]["schemas"][name]["properties"]["results"]["items"]["anyOf"]
    validators = [Draft202012Validator({**lenient, **kind}) for kind in kinds]
    for index, result in enumerate(content["example"]["results"]):
        fits = [validator.is_valid(result) for validator in validators]
        assert fits == [index == 0, index == 1]


def test_a_service_with_keys_describes_them_on_every_route_that_needs_one(keyed, document) -> None:
    described = keyed.get("/openapi.json").json()
    validate(described)
    schemes = described["components"]["securitySchemes"]
    assert [schemes["bearer"]["scheme"], schemes["header"]["name"]] == ["bearer", "X-API-Key"]
    for method, path, operation in operations(described):
        response = keyed.request(method, path.replace("{name}", "tiny"))
        is_refused = response.status_code == 401
        needed = [{name: []} for name in schemes] if is_refused else []
        assert operation.get("security", []) == needed, path
        if is_refused:
            assert response.headers["Content-Type"] == PROBLEM
    assert "securitySchemes" not in document["components"]


def test_the_framework_executes_no_parameter_that_only_describes(
    model, document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers get the request and parse it; the document is written beside them."""
    routes: list[APIRoute] = []
    initialise = APIRoute.__init__

    def recorded(route: APIRoute, *arguments: Any, **options: Any) -> None:
        routes.append(route)
        initialise(route, *arguments, **options)

    monkeypatch.setattr(APIRoute, "__init__", recorded)
    app_of(model)
    assert {route.path for route in routes} >= document["paths"].keys()
    for route in routes:
        executed = route.dependant
        assert (executed.query_params, executed.body_params) == ([], []), route.path


def test_the_body_of_a_decision_is_described_by_its_schema(document) -> None:
    body = document["paths"]["/decisions"]["post"]["requestBody"]["content"][JSON]
    for example in body["examples"].values():
        check(document, body["schema"], example["value"])
    refused = Draft202012Validator({**body["schema"], "components": document["components"]})
    assert not refused.is_valid({"decision": "urgent"}) and not refused.is_valid({"request_id": ""})
