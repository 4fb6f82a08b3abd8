"""Code blocks of Markdown documents."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CodeBlock:
    """A fenced code block; `language` is empty without an info string."""

    language: str
    code: str


def code_blocks(text: str) -> list[CodeBlock]:
    blocks = []
    language: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, lines = line.removeprefix("```"), []
        else:
            blocks.append(CodeBlock(language, "".join(f"{line}\n" for line in lines)))
            language = None
    return blocks
