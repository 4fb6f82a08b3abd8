"""Pictures of one's own: class folders, or a table `labels.csv` (`training.data.labels`)."""

import os
from collections import Counter
from difflib import get_close_matches
from pathlib import Path, PurePath
from unicodedata import normalize

from eulerlora.images.files import EXTENSIONS, is_image_name
from eulerlora_contract.checkpoints import ClassName
from eulerlora_contract.image_folders import hidden_name
from eulerlora_contract.printable import printable
from training.data.cache import DecodedImages, decoded_images
from training.data.dataset import LABELS, DataSet, DataSettings, split_suffix
from training.data.images import ImageParts, LabelledImage, OnBad
from training.data.label_splits import check_every_class, split_labels
from training.data.labels import ImageLabel


class ImageFolder(DataSet):
    """A folder or archive of pictures."""

    kind = "imagefolder"
    title = "image folder"
    licence = (
        "The licence of the training images applies; the checkpoint does not contain the images."
    )
    published = False

    def read(self, path: Path, settings: DataSettings, on_bad: OnBad) -> ImageParts:
        pictures = path / settings.images
        decoded = decoded_images(pictures)
        split = split_labels(settings, path, decoded)
        descriptions = {normalize("NFC", name): text for name, text in settings.classes.items()}
        faults: list[str] = []
        parts: dict[str, list[LabelledImage]] = {part: [] for part in split.parts}
        for part, rows in split.parts.items():
            for row in rows:
                if row.name in decoded.sources:
                    label, source = split.classes.index(row.label), decoded.sources[row.name]
                    image = LabelledImage(
                        row.name, source, label, row.cluster, row.attributes, row.lesion
                    )
                    parts[part].append(image)
                else:
                    name = (PurePath(settings.path) / row.name).as_posix()
                    fault = _fault(pictures, row, decoded, hint=not faults)
                    faults.append(f"{name}: {fault}")
                    on_bad(name, fault)
        counts = {part: Counter(image.label for image in images) for part, images in parts.items()}
        check_every_class(split, counts, faults)
        classes = tuple(
            ClassName(name=name, description=descriptions.get(name, name)) for name in split.classes
        )
        layout = self.title if split.labels.table is None else split.labels.table.name
        name = f"{printable(path.absolute().name)}, {layout}{split_suffix(settings.split)}"
        return ImageParts(name, classes, parts, notes=split.labels.notes)


def _fault(path: Path, row: ImageLabel, decoded: DecodedImages, hint: bool) -> str:
    """Why an image cannot be used; with `hint` a similar name, which is slow for many."""
    if row.name in decoded.bad:
        reason = decoded.bad[row.name]
    elif not os.path.exists(path / row.name):  # noqa: PTH110 - Path.exists raises for long names
        similar = get_close_matches(row.name, decoded.names, n=1) if hint else []
        reason = "no such file" + "".join(f"; did you mean {name}?" for name in similar)
    elif hidden_name(PurePath(row.name).parts) is not None and ".." not in row.name:
        reason = "expected no hidden file and none of a system"
    elif not is_image_name(row.name):
        reason = f"expected an image ({', '.join(EXTENSIONS)})"
    else:
        reason = f"expected a path below the folder of {LABELS}, without .."
    return f"{reason} ({row.place}, class {row.label})"
