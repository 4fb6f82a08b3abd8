"""An image container of another distribution is read where its setting switches it on."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import Problem
from service.containers import image_containers
from service.decoding.details import sentences
from service.decoding.fork_server import ForkServer
from service.decoding.formats import Declared, estimated_s, header_of
from service.decoding.messages import DecodedInput, DecodeJob
from service.decoding.pool import DecoderPool
from service.process import effective_settings
from tests.problems import raises_problem
from tests.service.settings import settings_of

FORKS = ForkServer()

MODULE = """
from dataclasses import replace

from eulerlora_contract.errors import ImageError
from eulerlora_contract.image_formats import read_header


class Wrapped:
    name, media_type, extension = "WRAPPED", "application/wrapped", ".wrapped"
    cpu_s_per_megapixel, sentences = 0.1, ("WRAPPED: expected an image",)

    def is_it(self, data):
        return data.startswith(b"wrapped")

    def read_header(self, data, limits):
        size = read_header(data[7:] or EMPTY, limits)
        return replace(size, format=self.name, is_estimated=True)

    def image_file(self, data, limits):
        if not data[7:]:
            raise ImageError(self.sentences[0])
        return data[7:]

    def load_library(self):
        import {library}


WRAPPED = Wrapped()
EMPTY = {png}
"""
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, png: bytes) -> Iterator[Install]:
    """Installs a distribution `wrapper` whose container imports a library: (library) -> None."""

    def distribution(library: str) -> None:
        information = tmp_path / "wrapper-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: wrapper\nVersion: 1.0\nProvides-Extra: files\n"
        )
        (information / "entry_points.txt").write_text(
            "[eulerlora.image_containers]\nwrapped = wrapper:WRAPPED [files]\n"
        )
        text = MODULE.replace("{library}", library).replace("{png}", repr(png))
        (tmp_path / "wrapper.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "wrapper", raising=False)
        clear()

    yield distribution
    monkeypatch.undo()
    clear()


def clear() -> None:
    """Forgets the installed containers."""
    for function in (image_containers, sentences):
        function.cache_clear()


def test_a_container_has_the_result_of_the_image_inside_if_it_is_switched_on(
    install: Install, png: bytes
) -> None:
    install("json")
    accepted = settings_of("images", wrapped=True)
    declared = Declared("application/wrapped", "a.wrapped")
    decoder = DecoderPool(accepted, settings_of("decoding", workers=1), forks=FORKS)

    async def results() -> list[DecodedInput | BaseException]:
        await decoder.start()
        return [
            *await asyncio.gather(
                *(
                    decoder.decode(DecodeJob(content, sent, Preprocessing(size=32), "r"))
                    for content, sent in (
                        (png, Declared()), (b"wrapped" + png, declared), (b"wrapped", declared)
                    )
                ),
                return_exceptions=True,
            )
        ]  # fmt: skip

    with asyncio.Runner() as runner:
        plain, wrapped, empty = runner.run(results())
        decoder.close()
    assert isinstance(plain, DecodedInput) and isinstance(wrapped, DecodedInput)
    assert np.array_equal(wrapped.pixels, plain.pixels) and wrapped.warnings == ()
    assert wrapped.content_seed == plain.content_seed
    assert isinstance(empty, Problem) and empty.detail == "WRAPPED: expected an image"
    assert empty.code == "unusable_image"
    header = header_of(b"wrapped" + png, accepted)
    assert (header.format, header.is_estimated) == ("WRAPPED", True)
    assert estimated_s(header) == pytest.approx(0.1 * header.pixels / 1e6)
    with raises_problem("unsupported_media"):
        header_of(b"wrapped" + png, settings_of("images"))


def test_its_variable_is_known_and_a_missing_library_is_named(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EULERLORA_SERVE_IMAGES__WRAPPED", "true")
    with pytest.raises(SettingsError, match="EULERLORA_SERVE_IMAGES__WRAPPED"):
        effective_settings()
    install("no_such_library")
    with pytest.raises(SettingsError, match=r"no_such_library.*'wrapper\[files\]'"):
        effective_settings()


def test_an_unknown_key_of_the_limits_is_refused() -> None:
    with pytest.raises(ValueError, match="max_pixel"):
        settings_of("images", max_pixel=5)
