"""Assertions: `python -O` removes them, so they must have no effect."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("eulerlora", "eulerlora_client", "training", "service")
WITHOUT_EFFECT = {"isinstance", "len"}
ROOT = Path(__file__).parents[2]


def calls_in_assertions(source: str) -> Iterator[str]:
    """Yields the functions that the assertions of a module call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            for part in ast.walk(node.test):
                if isinstance(part, ast.Call):
                    yield ast.unparse(part.func)


def test_a_call_in_an_assertion_is_reported() -> None:
    assert list(calls_in_assertions("assert receive(a) == READY")) == ["receive"]


def test_assertions_have_no_effect() -> None:
    for package in PACKAGES:
        files = [path for path in (ROOT / package).rglob("*.py") if "build" not in path.parts]
        assert files
        for path in files:
            assert set(calls_in_assertions(path.read_text())) <= WITHOUT_EFFECT, path
