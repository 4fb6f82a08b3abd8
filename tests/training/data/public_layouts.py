"""Writes public data sets in small, with the names of files as published."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image


def write_pictures(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        noise = np.random.default_rng([*name.encode()])
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / name)


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def ham10000(folder: Path) -> None:
    classes = ("mel", "nv", "bcc", "akiec", "bkl", "df", "vasc")
    rows = [
        {
            "lesion_id": f"HAM_{index // 2:07}", "image_id": f"ISIC_{24306 + index:07}",
            "dx": classes[index // 2 % 7], "dx_type": "histo", "age": 60.0, "sex": "male",
            "localization": "back",
        }
        for index in range(14 * 12)
    ]  # fmt: skip
    parts = ("HAM10000_images_part_1", "HAM10000_images_part_2")
    write_pictures(folder, [f"{parts[i % 2]}/{row['image_id']}.jpg" for i, row in enumerate(rows)])
    write_table(folder / "HAM10000_metadata.csv", rows)


def _one_hot(image: str, label: str, names: Sequence[str]) -> dict[str, object]:
    return {"image": image, **{name: float(name == label) for name in names}}


def isic_2018(folder: Path) -> None:
    names = ("MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC")
    images = [f"ISIC_{24306 + index:07}" for index in range(14 * 6)]
    write_pictures(folder, [f"ISIC2018_Task3_Training_Input/{image}.jpg" for image in images])
    write_pictures(folder, [f"ISIC2018_Task3_Test_Input/ISIC_{34524 + i:07}.jpg" for i in range(4)])
    truth = folder / "ISIC2018_Task3_Training_GroundTruth"
    rows = [_one_hot(image, names[i // 2 % 7], names) for i, image in enumerate(images)]
    write_table(truth / "ISIC2018_Task3_Training_GroundTruth.csv", rows)
    lesions = [
        {
            "image": image,
            "lesion_id": f"HAM_{i // 2:07}",
            "diagnosis_confirm_type": "histopathology",
        }
        for i, image in enumerate(images)
    ]
    write_table(folder / "ISIC2018_Task3_Training_LesionGroupings.csv", lesions)


def isic_2019(folder: Path) -> None:
    names = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK")
    images = [f"ISIC_{index:07}{'_downsampled' * (index % 3 == 0)}" for index in range(16 * 5)]
    inner = "ISIC_2019_Training_Input/ISIC_2019_Training_Input"
    write_pictures(folder, [f"{inner}/{image}.jpg" for image in images])
    rows = [_one_hot(image, names[i // 2 % 8], names) for i, image in enumerate(images)]
    write_table(folder / "ISIC_2019_Training_GroundTruth.csv", rows)
    described = [
        {
            "image": image, "age_approx": 55.0, "anatom_site_general": "anterior torso",
            "lesion_id": f"MSK4_{i // 2:07}" if i % 10 else "", "sex": "female",
        }
        for i, image in enumerate(images)
    ]  # fmt: skip
    write_table(folder / "ISIC_2019_Training_Metadata.csv", described)


def _isic_2020_rows() -> list[dict[str, object]]:
    return [
        {
            "image_name": f"ISIC_{2637011 + index:07}", "patient_id": f"IP_{index // 2:07}",
            "sex": "male", "age_approx": 45.0, "anatom_site_general_challenge": "head/neck",
            "diagnosis": "unknown", "benign_malignant": "malignant" if index % 5 == 0 else "benign",
            "target": int(index % 5 == 0),
        }
        for index in range(60)
    ]  # fmt: skip


def isic_2020(folder: Path) -> None:
    rows = _isic_2020_rows()
    write_pictures(folder, [f"train/{row['image_name']}.jpg" for row in rows])
    write_table(folder / "ISIC_2020_Training_GroundTruth.csv", rows)


def isic_2020_kaggle(folder: Path) -> None:
    rows = _isic_2020_rows()
    write_pictures(folder, [f"jpeg/train/{row['image_name']}.jpg" for row in rows])
    write_pictures(folder, [f"jpeg/test/ISIC_{index:07}.jpg" for index in range(5)])
    write_table(folder / "train.csv", rows)
    write_table(folder / "test.csv", [{"image_name": f"ISIC_{i:07}", "sex": ""} for i in range(5)])


def pad_ufes_20(folder: Path, pictures: str = ".") -> None:
    names = ("ACK", "BCC", "MEL", "NEV", "SCC", "SEK")
    rows = [
        {
            "patient_id": f"PAT_{index // 2}", "lesion_id": index, "smoke": "", "age": 50,
            "diagnostic": names[index // 2 % 6],
            "img_id": f"PAT_{index // 2}_{index}_{900 - index}.png",
        }
        for index in range(12 * 6)
    ]  # fmt: skip
    for index, row in enumerate(rows):
        part = f"imgs_part_{1 + index % 3}"
        write_pictures(folder / pictures, [f"{part}/{part}/{row['img_id']}"])
    write_table(folder / "metadata.csv", rows)


def pad_ufes_20_images(folder: Path) -> None:
    pad_ufes_20(folder, "images")


def derm7pt(folder: Path) -> None:
    names = ("basal cell carcinoma", "clark nevus", "melanoma (in situ)", "melanoma")
    rows = [
        {
            "case_num": index, "diagnosis": names[3 if index == 0 else index % 3],
            "seven_point_score": index % 8, "sex": "female", "management": "excision",
            "clinic": f"NEL/Nel{index:03}.jpg", "derm": f"NEL/NEL{index:03}.jpg",
            "case_id": f"C{index}", "notes": "",
        }
        for index in range(40)
    ]  # fmt: skip
    for key in ("clinic", "derm"):
        write_pictures(folder / "images", [str(row[key]) for row in rows])
    write_table(folder / "meta" / "meta.csv", rows)
    for part in ("train", "valid", "test"):
        write_table(folder / "meta" / f"{part}_indexes.csv", [{"indexes": i} for i in range(3)])


def fitzpatrick17k(folder: Path) -> None:
    names = ("drug induced pigmentary changes", "photodermatoses", "acne")
    rows = [
        {
            "md5hash": f"{index * 7919 + 12345:032x}", "fitzpatrick_scale": 1 + index % 6,
            "fitzpatrick_centaur": 1 + index % 6, "label": names[index % 3],
            "nine_partition_label": "inflammatory", "three_partition_label": "non-neoplastic",
            "qc": "", "url": "https://example.org/a.jpg", "url_alphanum": "a.jpg",
        }
        for index in range(45)
    ]  # fmt: skip
    write_pictures(folder, [f"data/finalfitz17k/{row['md5hash']}.jpg" for row in rows[:-2]])
    write_table(folder / "fitzpatrick17k.csv", rows)


def busi(folder: Path) -> None:
    for name in ("benign", "malignant", "normal"):
        pictures = [f"{name}/{name} ({index})" for index in range(1, 13)]
        write_pictures(folder, [f"{picture}.png" for picture in pictures])
        for picture in pictures:
            mask = np.zeros((40, 40), np.uint8)
            mask[5 : 5 + len(picture), 8:20] = 255
            Image.fromarray(mask).save(folder / f"{picture}_mask.png")
            if picture.endswith("(1)"):
                Image.fromarray(mask.T.copy()).save(folder / f"{picture}_mask_1.png")


def busi_in_a_folder(folder: Path) -> None:
    busi(folder / "Dataset_BUSI_with_GT")


def covid_radiography(folder: Path) -> None:
    for name in ("COVID", "Normal", "Viral Pneumonia"):
        for kind in ("images", "masks"):
            write_pictures(
                folder / name,
                [f"{kind}/{name}-{i}.png" for i in range(1, 13)],
            )


def intel(folder: Path) -> None:
    names = ("buildings", "forest", "glacier", "mountain", "sea", "street")
    for part, count in (("seg_train", 6), ("seg_test", 3)):
        for name in names:
            write_pictures(folder, [f"{part}/{part}/{name}/{i}.jpg" for i in range(count)])
    write_pictures(folder, [f"seg_pred/seg_pred/{i}.jpg" for i in range(4)])


def state_farm(folder: Path) -> None:
    rows = [
        {"subject": f"p{i // 6:03}", "classname": f"c{i % 3}", "img": f"img_{i}.jpg"}
        for i in range(90)
    ]
    write_pictures(folder, [f"imgs/train/{row['classname']}/{row['img']}" for row in rows])
    write_table(folder / "driver_imgs_list.csv", rows)


def per_patient_with_a_table(folder: Path) -> None:
    rows = [
        {
            "file": f"{i:02}.png",
            "diagnosis": ("nevus", "melanoma")[i % 2],
            "patient": f"P{i // 3:03}",
        }
        for i in range(60)
    ]
    write_pictures(folder, [f"per_patient/{row['patient']}/{row['file']}" for row in rows])
    write_table(folder / "clinical.csv", rows)


def per_patient(folder: Path) -> None:
    write_pictures(folder, [f"P{i // 5:03}/{i:02}.png" for i in range(40)])


def images_and_masks(folder: Path) -> None:
    for kind in ("images", "masks"):
        write_pictures(folder, [f"{kind}/{i:02}.png" for i in range(20)])


@dataclass(frozen=True)
class Layout:
    """A data set and how it is read.

    Attributes:
        classes: Of the right reading; empty if there is none.
        path: What a person names as --data.
        known: The name that is recognised.
        grouped: Patients or lesions are known.
    """

    write: Callable[[Path], None]
    classes: Sequence[str]
    path: str = "."
    known: str = ""
    grouped: bool = False


_HAM = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
_ISIC_2018 = ("AKIEC", "BCC", "BKL", "DF", "MEL", "NV", "VASC")
_ISIC_2019 = ("AK", "BCC", "BKL", "DF", "MEL", "NV", "SCC", "VASC")
_ISIC_2020 = ("benign", "malignant")
_PAD = ("ACK", "BCC", "MEL", "NEV", "SCC", "SEK")
_DERM = ("basal cell carcinoma", "clark nevus", "melanoma (in situ)")
_FITZPATRICK = ("acne", "drug induced pigmentary changes", "photodermatoses")
_BUSI = ("benign", "malignant", "normal")
_COVID = ("COVID", "Normal", "Viral Pneumonia")
_INTEL = ("buildings", "forest", "glacier", "mountain", "sea", "street")
LAYOUTS = {
    "HAM10000": Layout(ham10000, _HAM, ".", "HAM10000", True),
    "ISIC 2018": Layout(isic_2018, _ISIC_2018, ".", "ISIC 2018", True),
    "ISIC 2019": Layout(isic_2019, _ISIC_2019, ".", "ISIC 2019", True),
    "ISIC 2019, its folder": Layout(
        isic_2019, _ISIC_2019, "ISIC_2019_Training_Input", "ISIC 2019", True
    ),
    "ISIC 2020": Layout(isic_2020, _ISIC_2020, ".", "ISIC 2020", True),
    "ISIC 2020 of Kaggle": Layout(isic_2020_kaggle, _ISIC_2020, ".", "ISIC 2020", True),
    "PAD-UFES-20": Layout(pad_ufes_20, _PAD, ".", "PAD-UFES-20", True),
    "PAD-UFES-20 in images/": Layout(pad_ufes_20_images, _PAD, ".", "PAD-UFES-20", True),
    "PAD-UFES-20, images/": Layout(pad_ufes_20_images, _PAD, "images", "PAD-UFES-20", True),
    "Derm7pt": Layout(derm7pt, _DERM, ".", "Derm7pt", True),
    "Fitzpatrick17k": Layout(fitzpatrick17k, _FITZPATRICK, ".", "Fitzpatrick17k"),
    "BUSI": Layout(busi, _BUSI, ".", "BUSI"),
    "BUSI in a folder": Layout(busi_in_a_folder, _BUSI, ".", "BUSI"),
    "COVID radiography": Layout(covid_radiography, _COVID),
    "Intel": Layout(intel, _INTEL),
    "State Farm": Layout(state_farm, ("c0", "c1", "c2"), grouped=True),
    "patients with a table": Layout(
        per_patient_with_a_table, ("melanoma", "nevus"), "per_patient", grouped=True
    ),
    "patients": Layout(per_patient, ()),
    "images and masks": Layout(images_and_masks, ()),
}
