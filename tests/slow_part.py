"""A plug-in of pytest that selects one of several equal parts of the slow tests.

`pytest -p tests.slow_part -m slow --slow-part 2/6`
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow-part", metavar="K/N", help="Run each N-th test, from test K on.")


@pytest.hookimpl(trylast=True)  # after the selection by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--slow-part").split("/"))
    selected = items[part % parts :: parts]
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = selected
