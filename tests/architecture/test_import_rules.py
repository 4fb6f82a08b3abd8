"""The import rules of pyproject.toml hold, and the script that prints the import graph works."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.import_graph import ROOT, build, report


def test_imports_follow_the_declared_layers() -> None:
    # In a process of its own: import-linter disables all loggers of the process that it runs in.
    program = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [program, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout


def test_the_graph_of_a_checkout_has_its_modules_and_imports(tmp_path: Path) -> None:
    package = tmp_path / "sample_package"
    (package / "http").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "http" / "__init__.py").touch()
    (package / "app.py").write_text("from sample_package.http import upload\n")
    (package / "http" / "upload.py").write_text("from sample_package import settings\n")
    (package / "settings.py").write_text("def f():\n    import sample_package.app\n")
    graph = build(tmp_path, [package.name])
    structure = report(graph, package.name, ["app", "http | settings"])
    app, settings = "sample_package.app", "sample_package.settings"
    upload = "sample_package.http.upload"
    assert structure.sub_packages == {"sample_package.http": 1}
    assert structure.top_modules == [app, settings]
    assert structure.module_cycles == [[app, upload, settings]]
    assert structure.levels == 1  # a cycle counts once
    assert structure.upward == [("sample_package.http", settings), (settings, app)]
