"""What folders and files of pictures are by their names: classes, parts of a set, patients, masks.

Also the layouts of public data sets, and the tables near a folder that may have its labels.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path, PurePosixPath

from eulerlora_contract.errors import DataError
from eulerlora_contract.image_folders import hidden_name
from training.data.dataset import LABELS, Column, LabelTable
from training.data.splits import Part
from training.data.tables import (
    LIKELY_NAMES,
    WINDOWS,
    EncodingError,
    Table,
    read_label_table,
    reader_of_pictures,
    stacked,
)

PART_WORDS: Mapping[str, Part] = {
    "train": "train", "training": "train", "trn": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


def part_of(name: str) -> Part | None:
    """The part that a folder or a cell of the column `split` names; None for no or several.

    A part is a word of the name in any case: `Train`, `images_train`, `trainset`, `Test-2024`.
    """
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    parts = {PART_WORDS.get(word.lower().removesuffix("set")) for word in words} - {None}
    return parts.pop() if len(parts) == 1 else None


def part_in_column(column: str, cell: str) -> Part | None:
    """The part that a cell names, or for a truth value the column, such as `is_valid`."""
    named, truth = part_of(column), _TRUTH.get(cell.lower())
    if named in (None, "train") or truth is None:
        return part_of(cell)
    return named if truth else "train"


_TRUTH = {"true": True, "1": True, "false": False, "0": False}
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


def picture_folders(names: Collection[str]) -> list[str]:
    """The folders, of those of classes, that have pictures by their names."""
    return sorted(name for name in names if _words(name) & _PICTURES)


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
        note: What a user should know.
    """

    name: str
    files: Sequence[str]
    columns: Mapping[Column, str] = field(default_factory=dict)
    one_hot: tuple[str, ...] = ()
    note: str = ""


_PUBLIC_SETS = (
    PublicSet(
        "HAM10000",
        ["HAM10000_metadata*"],
        {"path": "image_id", "label": "dx", "lesion": "lesion_id"},
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
        note="the clinical pictures have the column clinic; the published parts are not read",
    ),
    PublicSet("Fitzpatrick17k", ["fitzpatrick17k*.csv"], {"path": "md5hash", "label": "label"}),
    PublicSet(
        "DDI",
        ["ddi_metadata.csv"],
        {"path": "ddi_file", "label": "malignant"},
        note="it names no patients; the column disease has the diagnosis, skin_tone the skin type",
    ),
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


@dataclass(frozen=True)
class OtherFormat:
    """Files in which a class of each picture is not stated as this program reads it.

    Attributes:
        files: Glob patterns, of which one has a file.
        way: What a person does with them.
        recipe: Of a training that reads them, and that is better than any table; with its options.
    """

    name: str
    files: Sequence[str]
    way: str = ""
    recipe: Sequence[str] = ()


_BOXES = (
    ", which states objects in pictures and no class of a picture: cut the objects out into a "
    f"folder for each class, or write a table {LABELS} with path and label"
)
_BY_LESION = ("--set", "data.split=lesion")
"""The recipe has the split of the paper, in which lesions are in two parts."""
_OTHER_FORMATS = (
    OtherFormat("HAM10000", ["HAM10000_metadata*"], recipe=["ham10000", *_BY_LESION]),
    OtherFormat("CIFAR-10", ["cifar-10-batches-py/data_batch_1"], recipe=["cifar10"]),
    OtherFormat("CIFAR-100", ["cifar-100-python/train"], recipe=["cifar100"]),
    OtherFormat("COCO", ["*.coco.json", "*/*.coco.json", "*/instances_*.json"], _BOXES),
    OtherFormat(
        "YOLO",
        ["labels/*.txt", "labels/*/*.txt", "*/labels/*.txt", "classes.txt", "*/_darknet.labels"],
        _BOXES,
    ),
    OtherFormat(
        "Label Studio",
        ["project-*-at-*.json"],
        ", which has annotations in JSON: export the project again as CSV",
    ),
    OtherFormat("Pascal VOC", ["Annotations/*.xml", "*/Annotations/*.xml"], _BOXES),
    OtherFormat(
        "MedMNIST",
        ["*mnist*.npz"],
        ", which are arrays: `python -m medmnist save --flag=NAME --root=DIR --folder=NEW "
        "--postfix=png` writes pictures and NAME.csv, which needs a first line split,path,label",
    ),
)


def other_format(folder: Path) -> OtherFormat | None:
    """The known format that the files in a folder have, beside class folders and tables."""
    for known in _OTHER_FORMATS:
        if any(next(folder.glob(pattern), None) for pattern in known.files):
            return known
    return None


TABLE_SUFFIXES = (".csv", ".tsv", ".tab", ".xls", ".xlsx", ".jsonl", ".parquet")
_READ_SUFFIXES = ("", ".csv", ".tsv", ".tab", ".jsonl")
_METADATA, _FILE_NAME = ("metadata.csv", "metadata.jsonl"), "file_name"
"""Tables of a Hugging Face ImageFolder, and their column of paths."""
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
        table: How it is read.
        has_labels: The column of the labels is known.
        known: The public data set that it is from, if any.
        groups: The column of what pictures share, a patient or lesion; None without one.
    """

    folder: Path
    path: Path
    table: LabelTable
    has_labels: bool
    known: PublicSet | None
    groups: str | None

    @property
    def note(self) -> str:
        """What is said of the public data set, as far as it holds with these tables."""
        if self.known is None:
            return ""
        whole = len(self.table.tables) == len(self.known.files) > 1
        text = f"; the files are those of {self.known.name}"
        return text if whole or not self.known.note else f"{text}: {self.known.note}"


def named_table(folder: Path, name: str, encoding: str | None) -> Table | None:
    """The table of this name in a folder, or those in its folders of parts as one; or None.

    Raises:
        DataError: As `read_label_table`, and for parts with different columns.
    """
    if (folder / name).is_file():
        return read_label_table(folder / name, encoding)
    parts = [
        inner / name
        for inner in sorted(folder.glob("*/"))
        if part_of(inner.name) and (inner / name).is_file()
    ]
    return stacked(folder, [read_label_table(file, encoding) for file in parts]) if parts else None


def default_table(folder: Path, settings: LabelTable) -> Table | None:
    """The table in a folder that is read without being named.

    That is `labels.csv` in any case, or the `metadata.csv` or `metadata.jsonl` of a Hugging Face
    ImageFolder with its labels; in the folder or in each part.

    Raises:
        DataError: As `named_table`, and for two spellings of `labels.csv`.
    """
    if not folder.is_dir():
        return None
    spellings = sorted(file.name for file in folder.iterdir() if file.name.lower() == LABELS)
    if len(spellings) > 1:
        raise DataError(f"{folder}: expected one {LABELS}, got {' and '.join(spellings)}")
    table = named_table(folder, spellings[0] if spellings else LABELS, settings.encoding)
    label = settings.columns.get("label", "label").strip().lower()
    for name in _METADATA if table is None else ():
        with suppress(DataError):
            found = named_table(folder, name, settings.encoding)
            if (
                found is not None
                and _FILE_NAME in found.header
                and (label in found.header or settings.one_hot or found.one_hot)
            ):
                return found
    return table


def path_column(table: Table, columns: Mapping[Column, str]) -> str:
    """The column of the pictures: the named one, or `file_name` of Hugging Face without `path`."""
    if "path" in columns:
        return columns["path"].strip().lower()
    return _FILE_NAME if _FILE_NAME in table.header and "path" not in table.header else "path"


def unread_tables(
    path: Path, names: Collection[str], settings: LabelTable, given: Sequence[Table] = ()
) -> Iterator[UnreadTable]:
    """Yields the tables that name the pictures of a folder, the likely first.

    They are in the folder, in one in it, or in the one above, unless `settings.images` names the
    pictures; or the first of the `given` ones, with the columns of the others.

    Args:
        path: Of the tables.
        names: Of the pictures, relative to `settings.images`.
        settings: What a user has stated of the table.
        given: Tables in place of those in folders.
    """
    if not path.is_dir() or not names:
        return
    above = path.absolute().parent
    places = {path: names}
    if settings.images == "." and not given:
        places[above] = {f"{path.absolute().name}/{name}" for name in names}
    for folder, here in places.items():
        tables = given or [*_tables_in(folder, settings, depth=2 if folder == path else 1)]
        candidates = given[:1] or sorted(tables, key=lambda one: public_set((), [one]) is None)
        pictures = folder / settings.images
        reader = cache(partial(reader_of_pictures, pictures, here, mask_names(here)))
        for table in candidates:
            found = _unread(folder, table, tables, here, reader, settings, bool(given))
            if found is not None:
                yield found


def _tables_in(folder: Path, settings: LabelTable, depth: int) -> Iterator[Table]:
    """Yields the readable tables in a folder; those of one name in its parts are one."""
    files = [
        file
        for pattern in ("*", "*/*")[:depth]
        for file in sorted(folder.glob(pattern))
        if file.suffix.lower() in _READ_SUFFIXES
        and hidden_name(file.relative_to(folder).parts) is None
        and file.is_file()
        and file.stat().st_size < _MAX_BYTES
    ]
    in_parts = Counter(file.name for file in files if part_of(file.parent.name))
    names = dict.fromkeys(
        file.name
        if file.parent != folder and part_of(file.parent.name) and in_parts[file.name] > 1
        else file.relative_to(folder).as_posix()
        for file in files[:_MAX_FILES]
    )
    for name in names:
        with suppress(DataError):
            try:
                table = named_table(folder, name, settings.encoding)
            except EncodingError:
                table = named_table(folder, name, WINDOWS)
            if table is not None:
                yield table


_Reader = Callable[[str], Callable[[str], str]]
"""`reader_of_pictures` by the suffix."""


def _unread(
    folder: Path,
    table: Table,
    tables: Sequence[Table],
    names: Collection[str],
    reader: _Reader,
    settings: LabelTable,
    given: bool,
) -> UnreadTable | None:
    """The table, if it names pictures."""
    known = public_set((), [table])
    paths = table.header if known is None else [known.columns["path"]]
    suffix, path, named = _path_column(table, paths, names, reader, settings.suffix)
    if named == 0 or (known is None and named < _NAMED):
        return None
    further: Sequence[Table] = tables[1:] if given else ()
    if known is not None:
        further = further or [
            other
            for pattern in known.files[1:]
            for other in tables
            if fnmatchcase(other.path.name, pattern) and path in other.header
        ]
    header = {name for one in (table, *further) for name in one.header}
    likely = known.columns if known is not None else _likely_columns(table, path)
    columns = {
        column: name
        for column, name in {"path": path, **likely, **settings.columns}.items()
        if name.strip().lower() in header
    }
    defaults = {**dict(zip(columns, columns, strict=True)), "path": path_column(table, {})}
    read = settings.model_copy(
        update={
            "tables": settings.tables
            if given
            else tuple(one.path.relative_to(folder).as_posix() for one in (table, *further)),
            "columns": {key: name for key, name in columns.items() if name != defaults[key]},
            "suffix": suffix,
            "encoding": table.encoding,
            "ignore_columns": True,
        }
    )
    groups = columns.get("group", columns.get("lesion"))
    has_labels = "label" in columns or bool(settings.one_hot or table.one_hot)
    return UnreadTable(folder, table.path, read, has_labels, known, groups)


def _path_column(
    table: Table, columns: Sequence[str], names: Collection[str], reader: _Reader, stated: str
) -> tuple[str, str, float]:
    """The suffix and the column by which most cells name pictures, and their share of the cells.

    The share is 0 for few of the pictures. The suffix is the `stated` one, or one that
    tells pictures apart.
    """
    others = [] if stated else sorted({PurePosixPath(name).suffix for name in names})
    best = (stated, columns[0] if columns else "", 0.0)
    for suffix in (stated, *others):
        name_of, ambiguous = reader(suffix), False
        for column in columns:
            at = table.header.index(column)
            sample = table.lines[:: 1 + len(table.lines) // _MAX_CELLS]
            named = 0
            for line in sample:
                try:
                    named += name_of(line.path(at)) in names
                except DataError:  # the end of several paths
                    ambiguous = True
            share = named / max(len(sample), 1)
            enough = share * len({*table.column(column)}) >= _COVERED * len(names)
            if enough and share > best[2]:
                best = (suffix, column, share)
        if best[2] >= _NAMED or not ambiguous:
            break
    return best


def _likely_columns(table: Table, path: str) -> dict[Column, str]:
    columns: dict[Column, str] = {}
    for column, likely in LIKELY_NAMES.items():
        found = (name for name in (column, *likely) if name in table.header and name != path)
        name = next(found, None)
        if column == "label" and name and not 1 < len({*table.column(name)}) <= _MAX_CLASSES:
            continue
        if (
            column == "split"
            and name
            and None in {part_in_column(name, cell) for cell in table.column(name)}
        ):
            continue
        if name and column != "path":
            columns[column] = name
    return columns
