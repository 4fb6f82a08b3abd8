"""The live service as its OpenAPI description tells of it, asked by schemathesis."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import BaseSchema

from eulerlora_client.contract.predictions import ProblemDocument
from tests.service.real_server import SOCKET_TIMEOUT_S

FEW = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=200, derandomize=False)
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
# To the description any bytes are an image, so that "positive data" need not be accepted.
LEFT_OUT = "positive_data_acceptance"


@pytest.fixture(scope="session")
def description(live: int) -> BaseSchema:
    """The description that a running service gives of itself."""
    load_all_checks()
    return schemathesis.openapi.from_url(
        f"http://127.0.0.1:{live}/openapi.json", timeout=SOCKET_TIMEOUT_S
    )


def test_every_answer_to_valid_input_is_one_that_is_described(description) -> None:
    assert ask_all(description, POSITIVE, FEW) >= {"POST /predict", "GET /models", "GET /readyz"}


def test_every_answer_to_invalid_input_is_one_that_is_described(description) -> None:
    asked = description.include(path_regex="^/predict")  # the others take nothing, or any name
    assert ask_all(asked, NEGATIVE, FEW) >= {"POST /predict"}


@pytest.mark.slow
def test_many_more_answers_are_ones_that_are_described(description) -> None:
    ask_all(description, POSITIVE, MANY)
    ask_all(description.include(path_regex="^/predict"), NEGATIVE, MANY)


def ask_all(description: BaseSchema, mode: GenerationMode, examples: settings) -> set[str]:
    """Asks every operation, checks the answers, and returns the operations' labels."""
    asked = set()
    for each in description.get_all_operations():
        operation = each.ok()
        asked.add(operation.label)
        examples(given(operation.as_strategy(generation_mode=mode))(check))()
    return asked


def check(case: schemathesis.Case) -> None:
    response = case.call_and_validate(
        excluded_checks=[CHECKS.get_one(LEFT_OUT)], timeout=SOCKET_TIMEOUT_S
    )
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"]
        problem = ProblemDocument.model_validate(response.json(), extra="forbid")
        assert problem.status == response.status_code
        assert [problem.request_id] == response.headers["x-request-id"]
