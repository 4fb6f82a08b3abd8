"""Writes the notebooks of the tutorials, executed.

    python examples/notebooks.py [NAME ...]

A tutorial is a script in the percent format: its docstring, `# %% [markdown]` before a cell of
text, whose lines are comments, and `# %%` before one of code. `ask_the_service` needs a service.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent
NOTEBOOKS = ("ask_the_service", "is_it_sure", "own_pictures", "training_loop")
TIMEOUT_S = 1800
PROGRESS = r"^(step|epoch \d+[1-9]/|.* per step).*\n"
"""Lines of a training that a notebook leaves out."""


def cells(source: str) -> Iterator[tuple[str, str]]:
    """The kind, `markdown` or `code`, and the text of each cell of a tutorial."""
    docstring = ast.get_docstring(ast.parse(source)) or ""
    title, _, introduction = docstring.partition("\n")
    yield "markdown", f"# {title.rstrip('.')}\n\n{introduction.strip()}"
    for cell in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        kind, _, body = cell.partition("\n")
        if "[markdown]" in kind:
            yield "markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)
        else:
            yield "code", body.strip()


def notebook(name: str) -> nbformat.NotebookNode:
    """The notebook of a tutorial, not executed."""
    new = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    made = [new[kind](text, id=f"cell-{index}") for index, (kind, text) in enumerate(cells(source))]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=made, metadata=kernel)


def executed(made: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Runs a notebook in a new folder and process; raises nbclient's CellExecutionError."""
    with TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(made, timeout=TIMEOUT_S, resources=resources, coalesce_streams=True)
        client.execute(env=os.environ | {"PYTHONPATH": str(EXAMPLES)})
    for cell in made.cells:
        cell.metadata.clear()  # times of the run
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = re.sub(PROGRESS, "", output.text, flags=re.MULTILINE)
    made.metadata.pop("language_info", None)  # the version of Python
    return made


if __name__ == "__main__":
    for name in sys.argv[1:] or NOTEBOOKS:
        nbformat.write(executed(notebook(name)), EXAMPLES / f"{name}.ipynb")
