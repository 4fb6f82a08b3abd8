"""Schemathesis: the responses of a running service match its OpenAPI description."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.schemas import BaseSchema

from tests.service.conftest import PROBLEM_KEYS
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
# The description accepts any bytes as an image, so "positive data" may be refused.
EXCLUDED_CHECK = "positive_data_acceptance"


@pytest.fixture(scope="session")
def description(live: int) -> BaseSchema:
    """The OpenAPI description of a running service."""
    load_all_checks()
    return schemathesis.openapi.from_url(
        f"http://127.0.0.1:{live}/openapi.json", timeout=SOCKET_TIMEOUT_S
    )


def test_responses_to_valid_input_match_the_description(description) -> None:
    assert call_all(description, POSITIVE, FEW) >= {"POST /predict", "GET /models", "GET /readyz"}


def test_responses_to_invalid_input_match_the_description(description) -> None:
    predict = description.include(path_regex="^/predict")  # other paths have no invalid input
    assert call_all(predict, NEGATIVE, FEW) >= {"POST /predict"}


@pytest.mark.slow
def test_many_more_responses_match_the_description(description) -> None:
    call_all(description, POSITIVE, MANY)
    call_all(description.include(path_regex="^/predict"), NEGATIVE, MANY)


def call_all(description: BaseSchema, mode: GenerationMode, examples: settings) -> set[str]:
    """Calls every operation, checks the responses, and returns the labels of the operations."""
    labels = set()
    for result in description.get_all_operations():
        operation = result.ok()
        labels.add(operation.label)
        examples(given(operation.as_strategy(generation_mode=mode))(check))()
    return labels


def check(case: schemathesis.Case) -> None:
    response = case.call_and_validate(
        excluded_checks=[CHECKS.get_one(EXCLUDED_CHECK)], timeout=SOCKET_TIMEOUT_S
    )
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"]
        problem = response.json()
        assert (set(problem), problem["status"]) == (PROBLEM_KEYS, response.status_code)
        assert [problem["request_id"]] == response.headers["x-request-id"]
