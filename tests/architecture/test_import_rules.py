"""The import rules of pyproject.toml hold, and the script that prints the import graph works."""

import subprocess
import sys
from pathlib import Path

import networkx
import pytest

from tests.architecture.import_graph import (
    PACKAGES,
    ROOT,
    build,
    cycles,
    declared_layers,
    levels,
    report,
    upward,
)

MODULES_OF_A_SUB_PACKAGE = range(3, 9)
SUB_PACKAGES = {"eulerlora": 4, "eulerlora_client": 8, "service": 16, "training": 20}


def test_imports_follow_the_declared_layers() -> None:
    # In a process of its own: import-linter disables all loggers of the process that it runs in.
    program = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [program, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_acyclic_and_its_sub_packages_are_of_moderate_size(package: str) -> None:
    structure = report(build(ROOT), package, declared_layers(ROOT).get(package))
    assert not structure.module_cycles
    assert not structure.sub_package_cycles
    assert not structure.upward
    assert len(structure.sub_packages) <= SUB_PACKAGES[package]
    for name, modules in structure.sub_packages.items():
        assert modules in MODULES_OF_A_SUB_PACKAGE, name


def test_the_graph_of_a_checkout_has_its_modules_and_imports(tmp_path: Path) -> None:
    package = tmp_path / "sample_package"
    (package / "http").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "http" / "__init__.py").touch()
    (package / "app.py").write_text("from sample_package.http import upload\n")
    (package / "http" / "upload.py").write_text("from sample_package import settings\n")
    (package / "settings.py").write_text("def f():\n    import sample_package.app\n")
    graph = build(tmp_path, [package.name])
    structure = report(graph, package.name, ["app", "http", "settings"])
    app, settings = "sample_package.app", "sample_package.settings"
    assert structure.sub_packages == {"sample_package.http": 1}
    assert structure.top_modules == [app, settings]
    assert structure.module_cycles == [[app, "sample_package.http.upload", settings]]
    assert structure.upward == [(settings, app)]


def test_the_nodes_of_a_cycle_are_one_level() -> None:
    graph = networkx.DiGraph([("a", "b"), ("b", "a"), ("b", "c")])
    assert cycles(graph) == [["a", "b"]]
    assert levels(graph) == 2


def test_imports_between_independent_layers_count_as_upward() -> None:
    graph = networkx.DiGraph([("p.a", "p.b"), ("p.c", "p.a"), ("p.c", "p.d"), ("p.b", "p.d")])
    assert upward(graph, ["c", "a | b", "d"]) == [("p.a", "p.b")]
    assert upward(graph, ["c", "a : b", "d"]) == []
