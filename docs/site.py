"""Hook of MkDocs: reference tables from the code, tutorials from examples/, documents of the root.

The text from `<!-- generated: NAME -->` to `<!-- end -->` in a page is replaced by the Markdown of
that name. Links to documents outside of docs/ lead to their pages; links to other files of the
repository become text.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from eulerlora.checkpoint.files import CARD_FILES
from eulerlora_contract.problems import SENT_BY_SERVICE
from eulerlora_contract.program import program
from examples.notebooks import cells
from service.app import create_app
from service.lifecycle.lifecycle import Lifecycle
from service.settings import VARIABLE_PREFIX, ServiceSettings, variables
from training.recipe.file import recipe_keys
from training.recipe.schema import SOURCE, AdapterRecipe

ROOT = Path(__file__).parents[1]
CARD = "eulerlora/default"
OUTSIDE = {
    "README.md": "index.md",
    "examples/README.md": "learn/index.md",
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "clinic/README.md": "clinic/index.md",
    **{f"clinic/docs/{page.name}": f"clinic/{page.name}" for page in ROOT.glob("clinic/docs/*.md")},
    "lab/docs/generated-images.md": "how-to/generated-images.md",
    "lab/docs/onnx-files.md": "how-to/onnx-files.md",
    "lab/docs/pretraining.md": "how-to/pretraining.md",
    "lab/docs/protocols.md": "results/studies.md",
    "lab/results/rates.svg": "results/rates.svg",
    "lab/results/site-heads.svg": "results/site-heads.svg",
    f"{CARD}/README.md": "results/model-card.md",
    **{
        f"{CARD}/{beside.name}": f"results/{beside.name}"
        for pattern in CARD_FILES
        for beside in (ROOT / CARD).glob(pattern)
    },
} | {
    f"examples/{path.name}": f"learn/{path.stem}.md"
    for path in ROOT.glob("examples/*.py")
    if "\n# %%" in path.read_text()
}
"""Pages of the site by their path in the repository, beside those of docs/."""
GENERATED_PART = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of OUTSIDE."""
    for source, page in OUTSIDE.items():
        path = ROOT / source
        if path.suffix == ".py":
            files.append(File.generated(config, page, content=tutorial(path.read_text(), source)))
        elif path.suffix == ".md" and path.exists():
            text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(), flags=re.DOTALL)
            files.append(File.generated(config, page, content=text))
        elif path.exists():
            files.append(File.generated(config, page, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fills in generated tables and adapts links."""
    markdown = GENERATED_PART.sub(lambda match: "\n".join(GENERATED[match[1]]()), markdown)
    uri = page.file.src_uri
    if uri == OUTSIDE["README.md"]:
        page.meta["hide"] = ["navigation", "toc"]
    source = next((path for path, name in OUTSIDE.items() if name == uri), f"docs/{uri}")

    def adapted(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or re.match(r"https?:|mailto:", target):
            return match[0]
        wanted = os.path.normpath(Path(source).parent / path)
        name = OUTSIDE.get(wanted, wanted.removeprefix("docs/"))
        if name == wanted:
            return text
        relative = os.path.relpath(name, Path(uri).parent)
        return f"{image}[{text}]({relative}{hash_sign}{anchor})"

    return LINK.sub(adapted, markdown.replace('src="docs/', 'src="'))


def tutorial(source: str, path: str) -> str:
    """A tutorial as Markdown: its title and introduction, then text and code."""
    parts = [
        text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells(source)
    ]
    return "\n\n".join([parts[0], f"*This page is the script `{path}`.*", *parts[1:]]) + "\n"


def command_line() -> Iterator[str]:
    """Yields a section with the help of each command."""
    yield from _command(program, "eulerlora")


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=96)
    yield from (f"## {name}", "", "```text", command.get_help(context), "```", "")
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            subcommand = command.get_command(context, inner)
            assert subcommand is not None
            yield from _command(subcommand, f"{name} {inner}")


def keys_of_recipes() -> Iterator[str]:
    """Yields a table of the keys of a recipe."""
    yield from ("| key | default | meaning |", "|---|---|---|")
    for key in recipe_keys(AdapterRecipe):
        if key.name not in SOURCE:
            yield f"| `{key.name}` | `{key.default}` | {key.text} |"


def settings() -> Iterator[str]:
    """Yields a table of the settings of the service."""
    yield from (f"| variable, after `{VARIABLE_PREFIX}` | default | meaning |", "|---|---:|---|")
    for one in variables():
        name = one.name.removeprefix(VARIABLE_PREFIX)
        yield f"| `{name}` | {one.default or 'none'} | {one.text} |"


def problems() -> Iterator[str]:
    """Yields a table of the problems of the service."""
    yield from ("| status | code | class | meaning |", "|---:|---|---|---|")
    for kind in sorted((kind for kind in SENT_BY_SERVICE if kind.status), key=lambda k: k.status):
        yield f"| {kind.status} | `{kind.code}` | `{kind.__name__}` | {kind.__doc__} |"


def operations() -> Iterator[str]:
    """Yields a section for each operation of the OpenAPI document, then one for each schema."""
    settings = ServiceSettings()
    document = create_app(Lifecycle(settings), settings).openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            text = operation.get("description") or operation["summary"]
            yield from (f"## {method.upper()} {path}", "", text, "")
            yield from _parameters(operation.get("parameters", ()))
            kinds = [f"`{kind}`" for kind in operation.get("requestBody", {}).get("content", ())]
            if kinds:
                yield from (f"Body: {' or '.join(kinds)}.", "")
            yield from (f"Responses: {', '.join(operation['responses'])}.", "")
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)


def _parameters(parameters: Any) -> Iterator[str]:
    if parameters:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
    for one in parameters:
        text = " ".join(one.get("description", "").split())
        yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {text} |"
    yield ""


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {name}", "", schema.get("description", ""), "")
    if "properties" not in schema:
        yield from (f"One of {_type(schema)}.", "")
        return
    yield from ("| field | type | meaning |", "|---|---|---|")
    for field, inner in schema["properties"].items():
        yield f"| `{field}` | {_type(inner)} | {' '.join(inner.get('description', '').split())} |"
    yield ""


def _type(schema: Mapping[str, Any]) -> str:
    """Returns the type of a JSON schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    alternatives = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if alternatives:
        return " or ".join(_type(one) for one in alternatives)
    if values := schema.get("enum") or schema.get("x-extensible-enum"):
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = [f"{sign} {schema[key]}" for key, sign in BOUNDS.items() if key in schema]
    return " ".join([str(schema.get("type", "any")), *bounds])


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
GENERATED: Mapping[str, Callable[[], Iterator[str]]] = {
    "command_line": command_line,
    "recipe_keys": keys_of_recipes,
    "settings": settings,
    "problems": problems,
    "operations": operations,
}
