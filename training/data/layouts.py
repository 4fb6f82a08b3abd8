"""What folders and files of pictures are by their names: classes, parts of a set, patients, masks.

Also the layouts of public data sets, and the tables near a folder that may have its labels.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from eulerlora_contract.errors import DataError
from eulerlora_contract.image_folders import hidden_name
from training.data.dataset import Column, LabelTable
from training.data.tables import LIKELY_NAMES, Table, read_csv_table, reader_of_pictures

_PARTS = {
    "part", "parts", "batch", "batches", "chunk", "fold", "folds", "folder", "shard", "split",
    "vol", "volume", "disk", "disc", "set", "dir", "archive", "zip", "train", "training",
    "test", "testing", "val", "valid", "validation", "dev", "augmented", "aug",
}  # fmt: skip
_PEOPLE = {
    "patient", "patients", "pat", "pt", "p", "subject", "subjects", "subj", "sub", "person",
    "participant", "case", "cases", "volunteer", "individual", "lesion", "lesions", "study",
    "exam", "visit", "id", "mrn",
}  # fmt: skip
_PICTURES = {
    "img", "imgs", "image", "images", "picture", "pictures", "pic", "pics", "photo", "photos",
    "data", "dataset", "input", "inputs", "jpg", "jpeg", "png", "raw", "original", "originals",
    "scan", "scans", "slice", "slices", "frame", "frames",
}  # fmt: skip
_MASKS = {
    "mask", "masks", "segmentation", "segmentations", "annotation", "annotations",
    "groundtruth", "gt", "contour", "contours", "roi", "rois", "label", "labels",
}  # fmt: skip
_ORDERED = {
    "class", "classes", "type", "grade", "stage", "level", "score", "category", "cat", "birads",
    "kl", "label", "cluster", "degree", "group",
}  # fmt: skip
_SYNSET = re.compile(r"n\d{8}")
_DIGEST = re.compile(r"(?=.*\d)[0-9a-f]{8,}(-[0-9a-f]{4,})*")
_MASK_SUFFIX = re.compile(
    r"[\s_.-]*(masks?|seg|segmentation|ground[\s_-]?truth|gt|annotations?|contour|label)"
    r"[\s_.-]*\d*$",
    re.IGNORECASE,
)
_MASK_PREFIX = re.compile(r"^(mask|seg|segmentation|gt)[\s_.-]+(of[\s_.-]+)?", re.IGNORECASE)


def _words(name: str) -> set[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    words = {word.casefold() for word in re.findall(r"[^\W\d_]+", spaced)}
    return words - {"ground", "truth"} | {"groundtruth"} if {"ground", "truth"} <= words else words


def unlike_classes(names: Collection[str], with_table: bool = False) -> str | None:
    """What folders are that are no classes by their names; None for those that may be.

    Names that differ in a number only are no classes if a word says so, or the numbers do: classes
    are counted from 0 or 1. With a table of the pictures, also other names without a word are none.
    """
    words = {name: _words(name) for name in names}
    kinds = {
        "parts of a set": _PARTS,
        "patients or lesions": _PEOPLE,
        "pictures and masks": _PICTURES | _MASKS,
    }
    known = set[str]().union(*kinds.values())
    listed = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
    if len(names) > 1 and len({re.sub(r"\d+", "#", name.casefold()) for name in names}) == 1:
        shared = next(iter(words.values()))
        for kind, of_kind in kinds.items():
            if shared & of_kind - _ORDERED and not (shared & _ORDERED and of_kind != _PARTS):
                return f"folders of {kind} ({listed})"
        if not shared & _ORDERED and not _are_counted(names):
            return f"folders of identifiers ({listed})"
    if len(names) > 1 and all(_DIGEST.fullmatch(name.casefold()) for name in names):
        return f"folders of identifiers ({listed})"
    if len(names) > 1 and all(found and found <= known for found in words.values()):
        common = (
            kind
            for kind, of_kind in kinds.items()
            if all(found & of_kind for found in words.values())
        )
        return f"folders of {next(common, 'pictures, parts or patients')} ({listed})"
    if with_table and all(len(word) < 3 for found in words.values() for word in found):
        return f"folders without a word of a class ({listed})"
    return None


def _are_counted(names: Collection[str]) -> bool:
    if any(_SYNSET.fullmatch(name.casefold()) for name in names):
        return True
    numbers = [re.findall(r"\d+", name) for name in names]
    texts = [text for found in numbers for text in found]
    padded = any(text.startswith("0") and len(text) > 2 for text in texts)
    if any(len(found) > 1 for found in numbers):  # such as ages from 4 to 6
        return not padded and all(len(text) < 3 for text in texts)
    counted = sorted(map(int, texts))
    first = counted[0]
    if counted == [*range(first, first + len(counted))] and first < 2:
        return first == 0 or not padded
    return not padded and counted[-1] < 10


def mask_names(names: Collection[str]) -> set[str]:
    """The names of pictures that are masks of others.

    Either a picture in the same folder has the name without `mask` or a similar word; or the folder
    has such a name, and beside it is a folder `images` or a similar one, or pictures, with pictures
    of the same names.
    """
    stems = {name: PurePosixPath(name).stem for name in names}
    by_folder: dict[PurePosixPath, set[str]] = defaultdict(set)
    for name, stem in stems.items():
        by_folder[PurePosixPath(name).parent].add(stem)
    masks = {
        name
        for name, stem in stems.items()
        if (plain := _without_mask(stem)) != stem and plain in by_folder[PurePosixPath(name).parent]
    }
    for folder, of_folder in by_folder.items():
        if _is_mask_folder(folder.name):
            beside = [
                other
                for other in by_folder
                if other == folder.parent
                or (other.parent == folder.parent and _words(other.name) & _PICTURES
                    and not _is_mask_folder(other.name))
            ]  # fmt: skip
            pictures = {stem for other in beside for stem in by_folder[other]}
            if pictures and all({stem, _without_mask(stem)} & pictures for stem in of_folder):
                masks |= {name for name in names if PurePosixPath(name).parent == folder}
    return masks


def mask_classes(names: Collection[str], places: Collection[str]) -> list[str]:
    """The folders, of those of classes, that have the masks of the pictures in the others."""
    stems: dict[str, set[str]] = defaultdict(set)
    for name in names:
        for place in places:
            if name.startswith(f"{place}/"):
                stems[place].add(PurePosixPath(name).stem)
    found = [place for place in places if _is_mask_folder(PurePosixPath(place).name)]
    others = set().union(*(stems[place] for place in places if place not in found))
    return [
        place
        for place in found
        if all({stem, _without_mask(stem)} & others for stem in stems[place])
        and not any(_words(PurePosixPath(other).name) & _MASKS for other in {*places} - {*found})
    ]


def _is_mask_folder(name: str) -> bool:
    words = _words(name)
    return bool(words & _MASKS) and words <= _MASKS | _PARTS | _PICTURES


def _without_mask(stem: str) -> str:
    return _MASK_PREFIX.sub("", _MASK_SUFFIX.sub("", stem))


@dataclass(frozen=True)
class PublicSet:
    """A public data set of pictures, and how its files are read.

    Attributes:
        files: Patterns for the relative paths of the tables, in any folder, the labels first;
            without columns, of its pictures.
        columns: Names of the columns of the tables.
        one_hot: Columns with a 1 for the class.
        recipe: That reads the published layout.
        note: What a user should know.
    """

    name: str
    files: Sequence[str]
    columns: Mapping[Column, str] = field(default_factory=dict)
    one_hot: tuple[str, ...] = ()
    recipe: str | None = None
    note: str = ""


_PUBLIC_SETS = (
    PublicSet(
        "HAM10000",
        ["HAM10000_metadata*"],
        {"path": "image_id", "label": "dx", "lesion": "lesion_id"},
        recipe="ham10000",
    ),
    PublicSet(
        "ISIC 2018",
        ["ISIC2018_Task3_Training_GroundTruth.csv", "ISIC2018_Task3_Training_LesionGroupings.csv"],
        {"path": "image", "lesion": "lesion_id"},
        one_hot=("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"),
        note="without ISIC2018_Task3_Training_LesionGroupings.csv, a lesion is in several parts",
    ),
    PublicSet(
        "ISIC 2019",
        ["ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"],
        {"path": "image", "lesion": "lesion_id"},
        one_hot=("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"),
        note="without ISIC_2019_Training_Metadata.csv, a lesion is in several parts",
    ),
    PublicSet(
        "ISIC 2020",
        ["ISIC_2020_Training_GroundTruth*.csv"],
        {"path": "image_name", "label": "benign_malignant", "group": "patient_id"},
    ),
    PublicSet(
        "ISIC 2020",
        ["train.csv"],
        {"path": "image_name", "label": "benign_malignant", "group": "patient_id"},
    ),
    PublicSet(
        "PAD-UFES-20",
        ["metadata.csv"],
        {"path": "img_id", "label": "diagnostic", "group": "patient_id", "lesion": "lesion_id"},
    ),
    PublicSet(
        "Derm7pt",
        ["meta.csv"],
        {"path": "derm", "label": "diagnosis", "group": "case_num"},
        note="the clinical pictures have the column clinic",
    ),
    PublicSet("Fitzpatrick17k", ["fitzpatrick17k*.csv"], {"path": "md5hash", "label": "label"}),
    PublicSet(
        "BUSI",
        ["benign ([0-9]*)_mask.png", "malignant ([0-9]*)_mask.png"],
        note="it names no patients, so that pictures of one may be in several parts",
    ),
)  # fmt: skip


def public_set(names: Collection[str], tables: Sequence[Table] = ()) -> PublicSet | None:
    """The public data set that pictures of these names, or a table, are from; None for others."""
    for known in _PUBLIC_SETS:
        if not known.columns:
            if all(any(fnmatchcase(PurePosixPath(n).name, f) for n in names) for f in known.files):
                return known
        elif any(_is_table_of(table, known) for table in tables):
            return known
    return None


def _is_table_of(table: Table, known: PublicSet) -> bool:
    wanted = {known.columns["path"], *map(str.lower, known.one_hot)}
    wanted |= {name for column, name in known.columns.items() if column != "lesion"}
    return fnmatchcase(table.path.name, known.files[0]) and wanted <= {*table.header}


TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".xls", ".xlsx", ".jsonl", ".parquet")
_READ_SUFFIXES = ("", ".csv", ".tsv", ".tab")
_MAX_FILES = 100
_MAX_BYTES = 2**24
_MAX_CELLS = 1_000
_MAX_CLASSES = 200
_COVERED = 0.1
"""Share of the pictures that a table of them names at least."""
_NAMED = 0.5
"""Share of the cells of a column that name pictures from which on it is that of the paths."""


@dataclass(frozen=True)
class UnreadTable:
    """A table near a folder that names its pictures.

    Attributes:
        folder: Of the pictures and the table: the given one, or the one above.
        table: How it is read; None if the columns are not known.
        known: The public data set that it is from, if any.
        groups: The column of what pictures share, a patient or lesion; None without one.
    """

    folder: Path
    path: Path
    table: LabelTable | None
    known: PublicSet | None
    groups: str | None

    @property
    def note(self) -> str:
        """What is said of the public data set, as far as it holds with these tables."""
        if self.known is None:
            return ""
        whole = self.table is not None and len(self.table.tables) == len(self.known.files) > 1
        text = f"; the files are those of {self.known.name}"
        return text if whole or not self.known.note else f"{text}: {self.known.note}"


def unread_tables(path: Path, names: Collection[str]) -> Iterator[UnreadTable]:
    """Yields the tables in a folder and in the one above that name its pictures, the likely first.

    `names` are relative to the folder.
    """
    if not path.is_dir() or not names:
        return
    above = path.absolute().parent
    places = ((path, names), (above, {f"{path.absolute().name}/{name}" for name in names}))
    for folder, here in places:
        files = [
            file
            for pattern in (("*", "*/*") if folder == path else ("*",))
            for file in sorted(folder.glob(pattern))
            if file.suffix.lower() in _READ_SUFFIXES
            and hidden_name(file.relative_to(folder).parts) is None
            and file.is_file()
            and file.stat().st_size < _MAX_BYTES
        ]
        tables = []
        for file in files[:_MAX_FILES]:
            try:
                tables.append(read_csv_table(file))
            except DataError:
                continue
        name_of = reader_of_pictures(folder, here, mask_names(here))
        for table in sorted(tables, key=lambda table: public_set((), [table]) is None):
            found = _unread(folder, table, tables, name_of, here)
            if found is not None:
                yield found


def _unread(
    folder: Path,
    table: Table,
    tables: Sequence[Table],
    name_of: Callable[[str], str],
    names: Collection[str],
) -> UnreadTable | None:
    """The table, if it names pictures."""

    def share(column: str) -> float:
        """Of the cells that name pictures; 0 for few of the pictures."""
        cells = table.column(column)
        sample = cells[:: 1 + len(cells) // _MAX_CELLS]
        named = 0
        for cell in sample:
            with suppress(DataError):  # the end of several paths
                named += name_of(cell) in names
        share = named / max(len(sample), 1)
        return share if share * len({*cells}) >= _COVERED * len(names) else 0.0

    known = public_set((), [table])
    if known is not None:
        if share(known.columns["path"]) == 0:
            return None
        further = [
            other
            for pattern in known.files[1:]
            for other in tables
            if fnmatchcase(other.path.name, pattern) and known.columns["path"] in other.header
        ]
        columns = {
            column: name
            for column, name in known.columns.items()
            if any(name in one.header for one in (table, *further))
        }
        one_hot = known.one_hot
    else:
        shares = {name: share(name) for name in table.header if name}
        path = max(shares, key=shares.__getitem__, default=None)
        if path is None or shares[path] < _NAMED:
            return None
        further, one_hot = [], ()
        columns = {"path": path, **_likely_columns(table, path)}
        if "label" not in columns:
            one_hot = _one_hot_columns(table)
    read = LabelTable(
        tables=tuple(one.path.relative_to(folder).as_posix() for one in (table, *further)),
        columns={column: name for column, name in columns.items() if column != name},
        one_hot=one_hot,
        ignore_columns=True,
    )
    groups = columns.get("group", columns.get("lesion"))
    read_as = read if "label" in columns or one_hot else None
    return UnreadTable(folder, table.path, read_as, known, groups)


def _likely_columns(table: Table, path: str) -> dict[Column, str]:
    columns: dict[Column, str] = {}
    for column, likely in LIKELY_NAMES.items():
        found = (name for name in (column, *likely) if name in table.header and name != path)
        name = next(found, None)
        if column == "label" and name and not 1 < len({*table.column(name)}) <= _MAX_CLASSES:
            continue
        if name and column not in ("path", "split"):
            columns[column] = name
    return columns


def _one_hot_columns(table: Table) -> tuple[str, ...]:
    """The columns of numbers of which one is 1 in every row, and the others 0."""
    numbers = [name for name in table.header if {*table.column(name)} <= {"0", "1", "0.0", "1.0"}]
    if len(numbers) < 2 or len({*numbers}) < len(numbers):
        return ()
    rows = zip(*(map(float, table.column(name)) for name in numbers), strict=True)
    return tuple(numbers) if all(sum(row) == 1 for row in rows) else ()
