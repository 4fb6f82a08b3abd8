"""The files below a folder."""

from pathlib import Path

from eulerlora.folders import files_below


def test_links_are_followed_and_nothing_is_listed_twice(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for path in (folder / "a.png", folder / "inner" / "notes.txt", elsewhere / "b"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "linked").symlink_to(elsewhere)
    (elsewhere / "up").symlink_to(folder)
    assert sorted(files_below(folder)) == [
        folder / "a.png",
        folder / "inner" / "notes.txt",
        folder / "linked" / "b",
    ]


def test_a_folder_that_cannot_be_listed_is_told_where_that_is_wanted(tmp_path: Path) -> None:
    errors: list[OSError] = []
    assert list(files_below(tmp_path / "nowhere", errors.append)) == []
    assert list(files_below(tmp_path / "nowhere")) == []
    assert [type(error) for error in errors] == [FileNotFoundError]
