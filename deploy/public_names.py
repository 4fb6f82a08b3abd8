"""Checks that every public name has a user: `python -m deploy.public_names [PACKAGE ...]`.

Without packages, those of all distributions are checked.

A public name is a class, function, constant or type of a module's top level, without a leading
underscore. It needs one of

- a user in another file that is no test;
- a declaration as a door: `__all__` of its module, a page of docs/reference, an entry point;
- a decorator that registers it with an object of its module, as `@router.get(...)` does;
- a place in a signature, a field, a base or an alias of another name that has one of these.

Otherwise it is a step of its module: private, and tested through what the module offers. The exit
status is 1 if a name has none of these; each gets a line.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_TYPE = re.compile(r"[\w.]+(\[[^ ]*\])?( \| [\w.]+)*")  # as in "Model | None"
_DOORS = (
    re.compile(r"^::: ([\w.]+)$", re.MULTILINE),  # a page of docs/reference
    re.compile(r'= "([\w.]+:\w+)[ "]'),  # an entry point in a pyproject.toml
)


def unused_names(
    files: Mapping[str, str], packages: Collection[str], declarations: str = ""
) -> list[str]:
    """Returns FILE:LINE NAME of the public names without a user.

    Args:
        files: Python code and templates of the project by path.
        packages: The folders of the packages that distributions have.
        declarations: Texts that name doors, of docs/reference and of pyproject.toml files.
    """
    doors = {door.replace(":", ".") for pattern in _DOORS for door in pattern.findall(declarations)}
    modules = []
    users = defaultdict[str, set[str]](set)
    for file, text in files.items():
        if "tests" in file.split("/"):
            continue
        if file.endswith(".py"):
            modules.append(_Module(file, ast.parse(text, file)))
            words = _words(modules[-1].tree)
        else:
            words = iter(re.findall(r"\w+", text))
        for word in words:
            users[word].add(file)
    lines = []
    for module in modules:
        if not any(module.file.startswith(f"{package}/") for package in packages):
            continue
        used = {
            name
            for name in module.defined
            if users[name] - {module.file}
            or name in module.exported
            or doors & {f"{dotted}.{name}" for dotted in module.names}
            or doors & module.names
            or module.registers(name)
        }
        used |= module.mentioned_by(used)
        lines += [
            f"{module.file}:{statement.lineno} {name}"
            for name, statement in module.defined.items()
            if name not in used
        ]
    return lines


@dataclass(frozen=True)
class _Module:
    file: str
    tree: ast.Module

    @property
    def names(self) -> set[str]:
        """Dotted names; that of a distribution's folder may stand before that of the package."""
        parts = self.file.removesuffix(".py").removesuffix("/__init__").split("/")
        return {".".join(parts[start:]) for start in range(len(parts))}

    @property
    def defined(self) -> dict[str, ast.stmt]:
        """The public names."""
        return {
            name: statement
            for statement in self.tree.body
            for name in _defined(statement)
            if not name.startswith("_")
        }

    @property
    def exported(self) -> set[str]:
        return {
            node.value
            for statement in self.tree.body
            if "__all__" in _defined(statement)
            for node in ast.walk(statement)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def registers(self, name: str) -> bool:
        """True if a decorator is a method of an object of the module."""
        assigned = {
            target
            for statement in self.tree.body
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            for target in _defined(statement)
        }
        decorators = getattr(self.defined[name], "decorator_list", [])
        return any(
            isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[0] in assigned
            for decorator in decorators
            for node in ast.walk(decorator)
        )

    def mentioned_by(self, used: set[str]) -> set[str]:
        """The names in signatures, fields, bases and aliases of those in `used`, and so on."""
        found, waiting = set[str](), list(used)
        while waiting:
            mentioned = {
                word for part in _interface(self.defined[waiting.pop()]) for word in _words(part)
            }
            new = mentioned & self.defined.keys() - used - found
            found |= new
            waiting += new
        return found


def _interface(statement: ast.stmt) -> Iterator[ast.AST]:
    """The parts of a definition that its users see."""
    if isinstance(statement, ast.ClassDef):
        yield from statement.bases
        for member in statement.body:
            if not any(name.startswith("_") for name in _defined(member)):
                yield from _interface(member)
    elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield statement.args
        if statement.returns is not None:
            yield statement.returns
    elif isinstance(statement, ast.AnnAssign):
        yield statement.annotation
        if statement.value is not None:
            yield statement.value
    elif isinstance(statement, ast.Assign):
        yield statement.value


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, _DEFINITIONS):
        return [statement.name]
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, ast.AnnAssign)
        else []
    )
    return [
        node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
    ]


def _words(tree: ast.AST) -> Iterator[str]:
    """The names that code mentions, also those in annotations that are strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value) if _TYPE.fullmatch(node.value) else ()


def _packages(projects: Mapping[str, str]) -> Iterator[str]:
    """The folders of the packages that pyproject.toml files include."""
    for file, text in projects.items():
        found = tomllib.loads(text)["tool"]["setuptools"]["packages"]["find"]
        folder = Path(file).parent / found.get("where", ["."])[0]
        yield from (normpath(folder / name.rstrip(".*")) for name in found["include"])


def _tracked(*patterns: str) -> dict[str, str]:
    command = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {file: Path(file).read_text() for file in listed.split("\0") if Path(file).is_file()}


if __name__ == "__main__":
    projects = _tracked("pyproject.toml", "*/pyproject.toml")
    declarations = [*projects.values(), *_tracked("docs/reference/*.md").values()]
    packages = sys.argv[1:] or {*_packages(projects)}
    unused = unused_names(_tracked("*.py", "*.j2", "*.html"), packages, "\n".join(declarations))
    for line in unused:
        print(f"{line}: no user but its own file and tests; make it private or declare a door")
    sys.exit(bool(unused))
