"""Archives of labelled pictures: packaged descriptions and files of one's own."""

from pathlib import Path

import pytest

from eulerlora.errors import SettingsError
from training.data.local_images import archive_names, read_archive_labels


def test_every_packaged_archive_is_valid_and_maps_melanoma() -> None:
    assert archive_names() == ["pad-ufes-20", "ph2"]
    for name in archive_names():
        assert "mel" in read_archive_labels(name).labels.values()


def test_an_unknown_name_is_refused_with_the_packaged_names() -> None:
    with pytest.raises(SettingsError, match=r"one of pad-ufes-20, ph2, got 'ph3'"):
        read_archive_labels("ph3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "title"),
        ('title = "A"\n[labels]\n', "labels"),
        ('title = "A"\nlesion = "("\n[labels]\na = "mel"\n', "expected a regular expression, got"),
        ('title = "A"\nlesion = "a"\n[labels]\na = "mel"\n', "expression with one group, got a"),
        ('title = "A"\nlesions = "a"\n[labels]\na = "mel"\n', "did you mean lesion"),
        ("title", "expected TOML"),
    ],
)
def test_an_error_in_a_file_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=rf"own\.toml: .*{message}"):
        read_archive_labels(str(path))
