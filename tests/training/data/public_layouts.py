"""Writes public data sets in small, with the names of files as published."""

import json
import shutil
import zipfile
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


def ham10000_kaggle(folder: Path) -> None:
    """Kaggle's archive, which has the pictures twice."""
    ham10000(folder)
    for part in ("images_part_1", "images_part_2"):
        source, copy = folder / f"HAM10000_{part}", folder / f"ham10000_{part}"
        shutil.copytree(source, copy, dirs_exist_ok=True)


def ham10000_with_masks(folder: Path) -> None:
    """The archives of the Dataverse, unpacked."""
    ham10000(folder)
    pictures = [path.stem for path in folder.glob("*/*.jpg")]
    masks = [f"{picture}_segmentation.png" for picture in pictures]
    write_pictures(folder / "HAM10000_segmentations_lesion_tschandl", masks)


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


def pad_ufes_20_packed(folder: Path) -> None:
    """The download of Mendeley Data, with its archives in a folder."""
    pad_ufes_20(folder, "images")
    for part in sorted((folder / "images").iterdir()):
        shutil.make_archive(str(part), "zip", part)
        shutil.rmtree(part)


def derm7pt(folder: Path) -> None:
    names = ("basal cell carcinoma", "clark nevus", "melanoma (in situ)", "melanoma")
    rows = [
        {
            "case_num": index + 1, "diagnosis": names[3 if index == 0 else index % 3],
            "seven_point_score": index % 8, "sex": "female", "management": "excision",
            "clinic": f"NEL/NEL{2 * index:03}.JPG", "derm": f"NEL/Nel{2 * index + 1:03}.jpg",
            "case_id": "", "notes": "",
        }
        for index in range(40)
    ]  # fmt: skip
    for key in ("clinic", "derm"):
        write_pictures(folder / "images", [str(row[key]) for row in rows])
    write_table(folder / "meta" / "meta.csv", rows)
    for part in ("train", "valid", "test"):
        write_table(folder / "meta" / f"{part}_indexes.csv", [{"indexes": i} for i in range(3)])


def derm7pt_in_a_folder(folder: Path) -> None:
    derm7pt(folder / "release_v0")


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


def ham10000_dataverse(folder: Path) -> None:
    """The files of the Dataverse as downloaded: archives, and a table with tabs."""
    ham10000(folder)
    for part in ("HAM10000_images_part_1", "HAM10000_images_part_2"):
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            for picture in sorted((folder / part).iterdir()):
                archive.write(picture, picture.name)
                picture.unlink()
        (folder / part).rmdir()
    table = folder / "HAM10000_metadata.csv"
    (folder / "HAM10000_metadata.tab").write_text(table.read_text().replace(",", "\t"))
    table.unlink()


def ddi(folder: Path) -> None:
    rows = [
        {
            "": index, "DDI_ID": index + 1, "DDI_file": f"{index + 1:06}.png",
            "skin_tone": (12, 34, 56)[index % 3], "malignant": index % 4 == 0,
            "disease": "nevus" if index % 4 else "melanoma",
        }
        for index in range(48)
    ]  # fmt: skip
    write_pictures(folder, [str(row["DDI_file"]) for row in rows])
    write_table(folder / "ddi_metadata.csv", rows)


def chest_xray(folder: Path) -> None:
    """Kaggle's archive, which has the set twice and the files of macOS."""
    names = [
        f"{part}/{name}/{kind}-{part}-{i:04}.jpeg"
        for part, count in (("train", 8), ("val", 2), ("test", 4))
        for name, kind in (("NORMAL", "IM"), ("PNEUMONIA", "person1_bacteria"))
        for i in range(count)
    ]
    write_pictures(folder, names)
    write_pictures(folder / "chest_xray", names)
    (folder / "__MACOSX" / "chest_xray").mkdir(parents=True)
    (folder / "__MACOSX" / "chest_xray" / "._train").touch()


_DAISIES = ("daisy", "dandelion", "rose")
_ROBOFLOW = {"train": 12, "valid": 6, "test": 6}


def roboflow_folders(folder: Path) -> None:
    for part, count in _ROBOFLOW.items():
        for name in _DAISIES:
            pictures = [f"{i}_jpg.rf.{i * 7919:032x}.jpg" for i in range(count)]
            write_pictures(folder, [f"{part}/{name}/{picture}" for picture in pictures])
    for name in ("README.dataset.txt", "README.roboflow.txt"):
        (folder / name).write_text("flowers\n")


def roboflow_csv(folder: Path) -> None:
    """The export of a multi-label project, whose header has a space after each comma."""
    for part, count in _ROBOFLOW.items():
        rows = []
        for i in range(count):
            ones = {f" {name}": int(i % 3 == at) for at, name in enumerate(_DAISIES)}
            rows.append({"filename": f"{i}_jpg.rf.{part}{i * 7919:030x}.jpg", **ones})
        write_pictures(folder / part, [str(row["filename"]) for row in rows])
        write_table(folder / part / "_classes.csv", rows)
    (folder / "README.roboflow.txt").write_text("flowers\n")


def _coco(names: Sequence[str]) -> dict[str, object]:
    return {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [1, 2, 8, 9]}
            for i in range(len(names))
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }


def coco(folder: Path) -> None:
    for part in ("train2017", "val2017"):
        names = [f"{i:012}.jpg" for i in range(8)]
        write_pictures(folder / part, names)
        path = folder / "annotations" / f"instances_{part}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(_coco(names)))


def coco_roboflow(folder: Path) -> None:
    for part in ("train", "valid"):
        names = [f"{i}_jpg.rf.jpg" for i in range(8)]
        write_pictures(folder / part, names)
        (folder / part / "_annotations.coco.json").write_text(json.dumps(_coco(names)))


def yolo(folder: Path) -> None:
    for part in ("train", "val"):
        write_pictures(folder / "images" / part, [f"{i}.jpg" for i in range(8)])
        (folder / "labels" / part).mkdir(parents=True)
        for i in range(8):
            (folder / "labels" / part / f"{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.2 0.3\n")
    (folder / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [cat, dog]\n")


def yolo_in_a_folder(folder: Path) -> None:
    yolo(folder / "coco128")


def yolo_labelimg(folder: Path) -> None:
    write_pictures(folder, [f"{i}.jpg" for i in range(8)])
    for i in range(8):
        (folder / f"{i}.txt").write_text("0 0.5 0.5 0.2 0.3\n")
    (folder / "classes.txt").write_text("cat\ndog\n")


def medmnist(folder: Path) -> None:
    folder.mkdir()
    arrays = {
        f"{part}_{kind}": np.zeros((4, 28, 28) if kind == "images" else (4, 1), np.uint8)
        for part in ("train", "val", "test")
        for kind in ("images", "labels")
    }
    np.savez(folder / "pneumoniamnist.npz", **arrays)


def _hugging_face_rows(part: str, count: int) -> list[dict[str, object]]:
    return [{"file_name": f"{part}{i:04}.png", "label": _DAISIES[i % 3]} for i in range(count)]


def hugging_face_csv(folder: Path) -> None:
    for part, count in (("train", 24), ("validation", 6), ("test", 6)):
        rows = _hugging_face_rows(part, count)
        write_pictures(folder / part, [str(row["file_name"]) for row in rows])
        write_table(folder / part / "metadata.csv", rows)


def hugging_face_jsonl(folder: Path) -> None:
    rows = _hugging_face_rows("", 30)
    write_pictures(folder, [str(row["file_name"]) for row in rows])
    lines = [json.dumps({**row, "objects": {"bbox": []}, "width": 40}) for row in rows]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")


def torchvision_folder(folder: Path) -> None:
    """The set of the tutorial of transfer learning, read by torchvision's ImageFolder."""
    for part, count in (("train", 9), ("val", 4)):
        for name in ("ants", "bees"):
            write_pictures(folder, [f"{part}/{name}/{i * 7919}_{name}.jpg" for i in range(count)])


def fastai_csv(folder: Path) -> None:
    """MNIST_SAMPLE, with its column of paths named `name`."""
    rows = [
        {"name": f"{part}/{digit}/{i}.png", "label": int(digit == 7)}
        for part, count in (("train", 9), ("valid", 4))
        for digit in (3, 7)
        for i in range(count)
    ]
    write_pictures(folder, [str(row["name"]) for row in rows])
    write_table(folder / "labels.csv", rows)


def fastai_in_a_folder(folder: Path) -> None:
    fastai_csv(folder / "mnist_sample")


def fastai_valid(folder: Path) -> None:
    rows = [
        {"name": f"{i:03}.jpg", "label": _DAISIES[i % 3], "is_valid": i % 5 == 0} for i in range(60)
    ]
    write_pictures(folder, [str(row["name"]) for row in rows])
    write_table(folder / "labels.csv", rows)


def _label_studio(folder: Path, cell: str, picture: str, annotators: int = 1) -> None:
    """The CSV export; `cell` and `picture` have the digits and the name of an upload."""
    rows = []
    for i in range(30):
        words = {"digits": f"{i * 7919 + 2**28:08x}", "name": f"IMG {i:04}.jpg"}
        write_pictures(folder, [picture.format(**words)])
        rows += [
            {
                "annotation_id": i + 1 + 100 * annotator, "annotator": annotator,
                "choice": _DAISIES[i % 3], "created_at": "2024-05-02T10:00:00.000000Z",
                "id": i + 1, "image": cell.format(**words), "lead_time": 3.5,
                "updated_at": "2024-05-02T10:00:01.000000Z",
            }
            for annotator in range(annotators)
        ]  # fmt: skip
    write_table(folder / "project-3-at-2024-05-02-10-00-1a2b3c4d.csv", rows)


def label_studio(folder: Path) -> None:
    """The pictures as they were before their upload."""
    _label_studio(folder, "/data/upload/3/{digits}-{name}", "pictures/{name}")


def label_studio_stored(folder: Path) -> None:
    """The pictures as Label Studio stores them."""
    cell = "http://localhost:8080/data/upload/3/{digits}-{name}"
    _label_studio(folder, cell, "media/upload/3/{digits}-{name}")


def label_studio_local(folder: Path) -> None:
    """Pictures in a folder below that of the local files, whose paths are quoted."""
    _label_studio(folder, "/data/local-files/?d=skin/new%20ones/{name}", "new ones/{name}")


def label_studio_twice(folder: Path) -> None:
    _label_studio(folder, "/data/upload/3/{digits}-{name}", "pictures/{name}", annotators=2)


def label_studio_json(folder: Path) -> None:
    label_studio(folder)
    (table,) = folder.glob("*.csv")
    rows = [{"image": "/data/upload/3/10000000-IMG.jpg", "choice": "rose"}]
    table.with_suffix(".json").write_text(json.dumps(rows))
    table.unlink()


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
        known: What the refusal says: a name that is recognised, or a way.
        grouped: Patients or lesions are known.
        at_once: The folder is read without further options.
        parts: Number of pictures in each part, if stated.
    """

    write: Callable[[Path], None]
    classes: Sequence[str]
    path: str = "."
    known: str = ""
    grouped: bool = False
    at_once: bool = False
    parts: Mapping[str, int] | None = None


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
    "HAM10000 of Kaggle": Layout(ham10000_kaggle, _HAM, ".", "HAM10000", True),
    "HAM10000 of the Dataverse": Layout(ham10000_dataverse, _HAM, ".", "HAM10000", True),
    "HAM10000 with masks": Layout(ham10000_with_masks, _HAM, ".", "HAM10000", True),
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
    "PAD-UFES-20, packed": Layout(pad_ufes_20_packed, (), known="unpack imgs_part_1.zip"),
    "Derm7pt": Layout(derm7pt, _DERM, ".", "Derm7pt", True),
    "Derm7pt in a folder": Layout(derm7pt_in_a_folder, _DERM, ".", "Derm7pt", True),
    "Fitzpatrick17k": Layout(fitzpatrick17k, _FITZPATRICK, ".", "Fitzpatrick17k"),
    "DDI": Layout(ddi, ("False", "True"), ".", "DDI"),
    "BUSI": Layout(busi, _BUSI, ".", "BUSI", at_once=True),
    "BUSI in a folder": Layout(busi_in_a_folder, _BUSI, ".", "BUSI"),
    "COVID radiography": Layout(covid_radiography, _COVID, at_once=True),
    "chest_xray": Layout(
        chest_xray, ("NORMAL", "PNEUMONIA"), at_once=True,
        parts={"train": 16, "calibration": 4, "test": 8},
    ),
    "Intel": Layout(
        intel, _INTEL, at_once=True, parts={"train": 30, "calibration": 6, "test": 18}
    ),
    "Roboflow, folders": Layout(
        roboflow_folders, _DAISIES, at_once=True,
        parts={"train": 36, "calibration": 18, "test": 18},
    ),
    "Roboflow, CSV": Layout(
        roboflow_csv, _DAISIES, parts={"train": 12, "calibration": 6, "test": 6}
    ),
    "COCO": Layout(coco, (), known="COCO"),
    "COCO of Roboflow": Layout(coco_roboflow, (), known="COCO"),
    "YOLO": Layout(yolo, (), known="YOLO"),
    "YOLO in a folder": Layout(yolo_in_a_folder, (), known="YOLO"),
    "YOLO of LabelImg": Layout(yolo_labelimg, (), known="YOLO"),
    "MedMNIST": Layout(medmnist, (), known="MedMNIST"),
    "Hugging Face, CSV in parts": Layout(
        hugging_face_csv, _DAISIES, at_once=True,
        parts={"train": 24, "calibration": 6, "test": 6},
    ),
    "Hugging Face, JSON lines": Layout(hugging_face_jsonl, _DAISIES),
    "torchvision": Layout(
        torchvision_folder, ("ants", "bees"), at_once=True,
        parts={"train": 16, "calibration": 2, "test": 8},
    ),
    "fastai": Layout(
        fastai_csv, ("0", "1"), parts={"train": 16, "calibration": 2, "test": 8}
    ),
    "fastai in a folder": Layout(
        fastai_in_a_folder, ("0", "1"), parts={"train": 16, "calibration": 2, "test": 8}
    ),
    "fastai, is_valid": Layout(
        fastai_valid, _DAISIES, parts={"train": 43, "calibration": 5, "test": 12}
    ),
    "Label Studio": Layout(label_studio, _DAISIES),
    "Label Studio, stored": Layout(label_studio_stored, _DAISIES),
    "Label Studio, local files": Layout(label_studio_local, _DAISIES),
    "Label Studio, two annotators": Layout(label_studio_twice, (), known="one row for each"),
    "Label Studio, JSON": Layout(label_studio_json, (), known="export the project again as CSV"),
    "State Farm": Layout(state_farm, ("c0", "c1", "c2"), grouped=True),
    "patients with a table": Layout(
        per_patient_with_a_table, ("melanoma", "nevus"), "per_patient", grouped=True
    ),
    "patients": Layout(per_patient, ()),
    "images and masks": Layout(images_and_masks, ()),
}  # fmt: skip
