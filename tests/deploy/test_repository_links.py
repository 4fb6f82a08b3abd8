"""The addresses that distributions have on a package index."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from deploy.repository_links import PROJECTS, main

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://example.org/a/b"


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that a release of version 1.2.3 changes."""
    for project in PROJECTS:
        (tmp_path / project).mkdir(exist_ok=True)
        for name in ("README.md", "pyproject.toml"):
            shutil.copy(ROOT / project / name, tmp_path / project / name)
    monkeypatch.chdir(tmp_path)
    main(REPOSITORY, "v1.2.3")
    return tmp_path


def test_every_link_of_a_readme_leads_to_a_file_of_the_release(released: Path) -> None:
    for project in PROJECTS:
        readme = (released / project / "README.md").read_text()
        for image, target in re.findall(r"(!\[[^\]]*)?\]\((?!#)([^)]+)\)", readme):
            view = "raw" if image else "blob"
            assert target.startswith("https://")
            if target.startswith("https://example.org"):
                path = target.partition(f"{REPOSITORY}/{view}/v1.2.3/")[2]
                assert (ROOT / path.partition("#")[0]).is_file(), target
    badge = f"Apache-2.0]({REPOSITORY}/raw/v1.2.3/docs/images/badges.svg)"
    line = f"[![Python 3.11-3.13, Linux; code: {badge}]({REPOSITORY}/blob/v1.2.3/LICENSE)"
    assert line in (released / "README.md").read_text().splitlines()


def test_a_distribution_names_the_repository_that_released_it(released: Path) -> None:
    for project in PROJECTS:
        table = tomllib.loads((released / project / "pyproject.toml").read_text())["project"]
        assert {address.removeprefix(REPOSITORY) for address in table["urls"].values()} == {
            "",
            "/tree/v1.2.3/docs",
            "/blob/v1.2.3/CHANGELOG.md",
            "/issues",
        }
