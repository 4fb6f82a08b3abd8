"""One exception for each code that the service can tell of."""

import pickle
from collections.abc import Iterator

import pytest

from eulerlora_client.contract import problems
from eulerlora_client.sdk.responses import BY_CODE
from service import errors
from service.http.problem_responses import HTTP_CODES


def tree(kind: type) -> Iterator[type]:
    yield kind
    for each in kind.__subclasses__():
        yield from tree(each)


SERVER = [each for each in tree(errors.Problem) if each.__module__ == errors.__name__]
OURS = list(tree(problems.ServiceProblem))


@pytest.mark.parametrize("served", SERVER, ids=lambda each: each.code)
def test_every_problem_of_the_service_has_its_exception(served: type[errors.Problem]) -> None:
    ours = BY_CODE[served.code]
    assert (ours.code, ours.status) == (served.code, served.status)
    if served is not errors.Problem:
        assert ours.__name__ == served.__name__


def test_codes_of_routing_have_theirs_too() -> None:
    assert set(HTTP_CODES) <= set(BY_CODE)


def test_no_two_exceptions_have_the_same_code() -> None:
    codes = [each.code for each in OURS]
    assert len(set(codes)) == len(codes)


def test_the_docstring_draws_the_tree() -> None:
    assert problems.__doc__ is not None
    drawn = problems.__doc__.split()
    for each in OURS:
        assert each.__name__ in drawn
        assert each.code in drawn or each is problems.ServiceProblem


def test_a_kind_has_the_status_of_the_kind_it_is_made_from() -> None:
    for each in OURS:
        (parent,) = each.__bases__
        if getattr(parent, "status", None) is not None:
            assert each.status == parent.status


def test_it_is_told_in_one_line_and_survives_pickling() -> None:
    problem = problems.QuotaExceeded("at most 2 a minute", request_id="r1", retry_after_s=3)
    assert str(problem) == "The quota is used up: at most 2 a minute"
    again = pickle.loads(pickle.dumps(problem))
    assert (str(again), again.__dict__) == (str(problem), problem.__dict__)
