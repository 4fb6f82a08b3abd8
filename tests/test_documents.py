"""The documents: links lead to existing targets; documented commands and options exist."""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from eulerlora_contract.program import program
from tests.markdown import code_blocks

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "*.md", "docs/**/*.md", "e*/*.md", "clinic/*.md", "clinic/docs/*.md",
    "lab/*.md", "lab/docs/*.md", "eulerlora/default/*.md",
)  # fmt: skip
DOCUMENTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern))
MAKE_TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
HOUSES = {"eulerlora_clinic": "clinic", "eulerlora_lab": "lab"}
RECIPES = {
    "train": {path.stem for path in ROOT.glob("training/recipes/*.toml")},
    "pretrain": {path.stem for path in ROOT.glob("lab/eulerlora_lab/pretraining/recipes/*.toml")},
}

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@each_document
def test_relative_links_lead_to_existing_files_and_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", path.read_text()):
        file, _, anchor = (target[0] or target[1]).partition("#")
        if re.match(r"https?:|mailto:", file):
            continue
        document = path.parent / file if file else path
        assert document.exists(), target
        if anchor:
            assert anchor in anchors(document), target


@each_document
def test_commands_and_their_options_exist(path: Path) -> None:
    for words in command_lines(path):
        if words[0] == "eulerlora" and len(words) > 1:
            check_command(words[1:])
        elif words[0] == "make":
            targets = {word for word in words[1:] if "=" not in word}
            assert targets <= MAKE_TARGETS, words
        elif words[:2] == ["python", "-m"]:
            check_module(words[2], words[3:])


def check_command(words: list[str]) -> None:
    """Fails if the subcommand, one of its options or a recipe name does not exist."""
    command: click.Command = program
    arguments = iter(words)
    while isinstance(command, click.Group):
        name = next(arguments, "--help")
        if not re.fullmatch(r"[a-z]+", name):
            return
        subcommand = command.get_command(click.Context(command), name)
        assert subcommand is not None, words
        command = subcommand
    rest = list(arguments)
    known = {
        option
        for parameter in command.get_params(click.Context(command))
        for option in [*parameter.opts, *parameter.secondary_opts]
    } | {"--help"}
    assert options(rest) <= known, words
    names = RECIPES.get(command.name or "")
    if names and rest and re.fullmatch(r"[a-z][\w-]*", rest[0]):
        assert rest[0] in names, words
    if rest and rest[0].startswith("lab/"):
        assert (ROOT / rest[0]).is_file(), words


def check_module(name: str, arguments: list[str]) -> None:
    """Fails if a program of the repository or one of its options does not exist.

    Reads the options from the source: importing the benchmarks takes seconds.
    """
    package, *inner = name.split(".")
    path = ROOT.joinpath(HOUSES.get(package, ""), package, *inner)
    sources = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    known = set(
        re.findall(r'["/](--[a-z-]+)(?=["/])', "".join(source.read_text() for source in sources))
    )
    assert options(itertools.takewhile("--".__ne__, arguments)) <= known, (name, arguments)


def options(arguments: Iterable[str]) -> set[str]:
    return {word.split("=")[0] for word in arguments if word.startswith("--")}


def anchors(document: Path) -> set[str]:
    """Returns the anchors of a document's headings, formed like GitHub's."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def command_lines(path: Path) -> Iterator[list[str]]:
    """Yields the calls of the project's programs in code blocks and code spans.

    The programs of an earlier commit are named as "`COMMAND` of commit HASH".
    """
    text = path.read_text()
    blocks = [block.code for block in code_blocks(text) if block.language == ""]
    blocks += re.findall(r"(?<=\n\n)((?: {4}\S.*\n)+)", text)
    spans = re.findall(r"`((?:eulerlora|make|python -m) [^`]+)`(?!\s+of\s+commit)", text)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in [*lines, *(" ".join(span.split()) for span in spans)]:
        start = re.search(r"(?<![\w/.-])(eulerlora|make|python -m) [\w-]", line.split(" #")[0])
        if start is not None:
            try:
                yield shlex.split(line[start.start() :], comments=True)
            except ValueError:  # part of a quotation over several lines
                continue
