"""Every public name has a user: the rule on small projects."""

import pytest

from deploy.public_names import unused_names

STEP = "def step():\n    return 1\n"


def unused(module: str, declarations: str = "", **others: str) -> list[str]:
    """Returns the names of package/module.py without a user."""
    files = {f"{name.replace('_', '/', 1)}.py": code for name, code in others.items()}
    lines = unused_names({"package/module.py": module} | files, {"package"}, declarations)
    return [line.split()[1] for line in lines if line.startswith("package/module.py:")]


def test_a_name_that_only_its_own_file_and_tests_use_is_found() -> None:
    module = f"LIMIT = 3\n{STEP}def total():\n    return step() + LIMIT\n"
    tests = "from package.module import LIMIT, step"
    assert unused(module, tests_module=tests) == ["LIMIT", "step", "total"]
    assert unused(module.replace("step", "_step").replace("LIMIT", "_LIMIT")) == ["total"]


@pytest.mark.parametrize(
    "user",
    [
        "from package.module import step",
        "import package.module\npackage.module.step()",
        "def call(one: 'step | None'): ...",
    ],
)
def test_a_user_in_another_file_is_enough(user: str) -> None:
    assert unused(STEP, package_other=user) == []
    assert unused(STEP, examples_program=user) == []
    assert unused(STEP, tests_other=user) == ["step"]


@pytest.mark.parametrize(
    "declared",
    [
        '__all__ = ["step"]\n' + STEP,
        "router = Router()\n@router.get('/')\n" + STEP,
    ],
)
def test_a_module_declares_a_door_itself(declared: str) -> None:
    assert unused(declared) == ([] if "__all__" in declared else ["router"])


def test_a_decorator_of_another_module_registers_nothing() -> None:
    assert unused("from functools import cache\n@cache\n" + STEP) == ["step"]


@pytest.mark.parametrize(
    "declarations",
    ["::: package.module.step", "::: package.module", '[x]\nstep = "package.module:step [serve]"'],
)
def test_documents_and_entry_points_declare_doors(declarations: str) -> None:
    assert unused(STEP, declarations) == []
    assert unused(STEP, declarations.replace("module", "modul")) == ["step"]


def test_what_a_used_name_shows_in_its_signature_is_used() -> None:
    module = (
        "class Base: ...\nclass Part(Base): ...\nclass Hidden: ...\n"
        "class Whole:\n    part: Part\n    def _method(self) -> Hidden: ...\n"
    )
    assert unused(module, package_other="Whole") == ["Hidden"]
    assert unused(module) == ["Base", "Part", "Hidden", "Whole"]
