"""Gives the distributions the addresses of a repository: `python -m deploy.repository_links`.

    python -m deploy.repository_links https://HOST/ORGANISATION/REPOSITORY TAG

A package index shows a README without its repository, so that relative links lead nowhere there. In
the README of every distribution they become links to the files at TAG, and every `pyproject.toml`
gets the table `[project.urls]`. The files are changed in place: the release workflow does it in its
own checkout, before it builds.
"""

import re
import sys
from os.path import normpath
from pathlib import Path

PROJECTS = (".", "eulerlora_contract", "eulerlora_client", "clinic", "lab")
# A whole image, or the end of a link: the text of a link may be an image.
_RELATIVE = re.compile(r"(!\[[^\]]*)?\]\((?![a-z]+:|#)([^)\s]+)\)")


def _absolute(markdown: str, folder: str, repository: str, tag: str) -> str:
    """Replaces the relative links of a README in `folder`; the link of an image is to its bytes."""

    def absolute(link: re.Match[str]) -> str:
        image, target = link.groups(default="")
        view = "raw" if image else "blob"
        return f"{image}]({repository}/{view}/{tag}/{normpath(f'{folder}/{target}')})"

    return _RELATIVE.sub(absolute, markdown)


def main(repository: str, tag: str) -> None:
    """Changes the files of all distributions below the working folder."""
    urls = (
        "\n[project.urls]\n"
        f'Repository = "{repository}"\n'
        f'Documentation = "{repository}/tree/{tag}/docs"\n'
        f'Changelog = "{repository}/blob/{tag}/CHANGELOG.md"\n'
        f'Issues = "{repository}/issues"\n'
    )
    for folder in PROJECTS:
        readme, project = Path(folder, "README.md"), Path(folder, "pyproject.toml")
        readme.write_text(_absolute(readme.read_text(), folder, repository, tag))
        project.write_text(project.read_text() + urls)


if __name__ == "__main__":
    main(*sys.argv[1:])
