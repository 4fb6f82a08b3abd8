"""Every text that a decoder has about an image is one of the sentences of the service."""

import ast
from pathlib import Path

import pytest
from PIL import Image

from eulerlora_contract.problems import Problem
from service.decoding.decode import decode
from service.decoding.details import Detail, sentences
from service.decoding.formats import Declared
from tests.damaged_images import contradictory_images
from tests.service.decoding.test_sandbox import image_files
from tests.service.settings import settings_of

ROOT = Path(__file__).parents[3]
SOURCES = (
    "eulerlora/images/decode.py", "eulerlora_contract/colours.py",
    "eulerlora_contract/image_formats.py",
)  # fmt: skip
SENTENCES = list(sentences())
PREFIXES = {"_ProfileError": "the colour profile is ignored: "}


def check(text: str) -> None:
    """Checks that a decoder can say this."""
    detail = Detail.of(text)
    assert detail.number, text
    assert detail.text.replace(",", "") == text.replace(",", "")


def test_the_texts_of_good_and_damaged_images_are_sentences(photo: Image.Image) -> None:
    limits = settings_of("images")
    texts: set[str] = set()
    for content in (*image_files(photo), *contradictory_images()):
        try:
            image = decode(content, limits, Declared("image/png", "a.tif"))
        except Problem as problem:
            if problem.code != "unsupported_media":  # whose header the service reads
                texts.add(problem.detail)
        else:
            texts.update(warning.message for warning in image.warnings)
    assert len(texts) > 10
    for text in texts:
        check(text)


@pytest.mark.parametrize("source", SOURCES)
def test_the_constant_texts_of_errors_and_warnings_are_sentences(source: str) -> None:
    for node in ast.walk(ast.parse((ROOT / source).read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name == "ignored.append" or (name.endswith("Error") and name != "ValueError"):
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    check(PREFIXES.get(name, "") + str(argument.value))


def test_a_text_with_numbers_keeps_them() -> None:
    text = "expected at most 24,000,000 pixels; the image is 7 x 9,000"
    assert Detail.of(text).text == text


def test_another_text_becomes_the_first_sentence() -> None:
    for text in ("", "the image is Jane Doe", f"{SENTENCES[1]} 5", "#"):
        assert Detail.of(text).text == SENTENCES[0]
