"""The tree of problems and their codes."""

import pickle
from collections.abc import Iterator

import pytest

from eulerlora_client.contract import problems


def tree(kind: type) -> Iterator[type]:
    """Yields the classes of the contract; another package may have private subclasses."""
    if kind.__module__ == problems.__name__:
        yield kind
    for subclass in kind.__subclasses__():
        yield from tree(subclass)


TREE = list(tree(problems.Problem))


@pytest.mark.parametrize("kind", problems.RESPONSE_PROBLEMS, ids=lambda kind: kind.code)
def test_a_code_selects_its_class_whatever_the_status(kind: type[problems.Problem]) -> None:
    assert problems.problem_class(kind.code, 418) is kind


def test_the_service_sends_every_response_problem_except_the_groups() -> None:
    grouped = {parent for kind in problems.RESPONSE_PROBLEMS for parent in kind.__bases__}
    assert set(problems.GROUPS) <= grouped
    assert {problems.NotFound, problems.RequestRefused} <= set(problems.SENT_BY_SERVICE)


def test_codes_and_titles_are_unique() -> None:
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(codes)
    titles = [kind.title for kind in problems.SENT_BY_SERVICE]
    assert len(set(titles)) == len(titles)


def test_the_docstring_names_every_class_and_code() -> None:
    assert problems.__doc__ is not None
    drawn = problems.__doc__.split()
    for kind in TREE:
        assert kind.__name__ in drawn
        assert kind.code in drawn or kind is problems.Problem


def test_a_class_has_the_status_of_its_base_class() -> None:
    for kind in TREE:
        (parent,) = kind.__bases__
        if getattr(parent, "status", None) is not None:
            assert kind.status == parent.status


def test_a_problem_is_one_line_and_can_be_pickled() -> None:
    problem = problems.QuotaExceeded("at most 2 a minute", request_id="r1", retry_after_s=3)
    assert str(problem) == "The quota is used up: at most 2 a minute"
    again = pickle.loads(pickle.dumps(problem))
    assert (str(again), again.__dict__) == (str(problem), problem.__dict__)
