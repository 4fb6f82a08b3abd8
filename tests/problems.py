"""The problem that a call raises, by its code, as a client sees it."""

import pytest

from eulerlora_contract.problems import Problem


def raises_problem(*codes: str, match: str | None = None) -> "pytest.RaisesExc[Problem]":
    """Expects a problem with one of the codes: `with raises_problem("not_ready"): ...`."""
    return pytest.raises(Problem, match=match, check=lambda problem: problem.code in codes)
