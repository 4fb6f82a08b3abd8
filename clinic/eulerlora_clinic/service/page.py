"""The page (`GET /` and `/page/{name}`).

The scripts of the page are one file, and
so are its styles: on a slow line, every request delays the page.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import PurePath

from jinja2 import Environment, StrictUndefined

from eulerlora_clinic.language import Language, message
from eulerlora_clinic.policy import results as texts
from eulerlora_clinic.policy.policy import Evidence, MeasuredEvidence, Policy, default_policy
from eulerlora_contract.checkpoints import Unit
from eulerlora_contract.image_formats import (
    DICOM_KIND,
    KEPT_PNG_CHUNKS,
    KEPT_SEGMENTS,
    KEPT_WEBP_CHUNKS,
    KINDS,
    SNIFFED_BYTES,
)
from eulerlora_contract.sampling import Precision
from service.routes.files import INDEX, TYPES_BY_EXTENSION, PageFile

SCRIPT, STYLE = "page.js", "page.css"
_MAIN = "main.js"
_STYLES = ("tokens", "colours", "layout", "controls", "work_list", "card", "print")
"""In the order in which they override each other."""
_IMAGES = {
    "HAM10000": message("dermatoscopic images of the clinics that the model learned from"),
    "PH2": message("dermatoscopic images of another clinic"),
    "PAD-UFES-20": message("photographs taken with phones"),
}
"""What the images of a data set are, by the first word of its name."""
_CASES: Mapping[Unit, str] = {
    "lesion": message("a case is a lesion"),
    "group": message("a case is a group"),
    "picture": message("a case is a picture"),
}

_KEPT = {
    "JPEG": [[marker, start.decode()] for marker, start in KEPT_SEGMENTS.items()],
    "PNG": sorted(kind.decode() for kind in KEPT_PNG_CHUNKS),
    "WEBP": sorted(kind.decode() for kind in KEPT_WEBP_CHUNKS),
}
"""What the page keeps of a file without its metadata."""
_FEW_SPARED = 0.1
"""A specificity below which the policy does not help to order images."""

_IMPORT = re.compile(r'^import [^;]* from "\./([^"]+)";\n', re.MULTILINE)


@dataclass(frozen=True)
class _MeasuredRow:
    """What the page says about the policy on one data set.

    Attributes:
        data: The name of the data set.
        images: What they are.
        case: What is counted.
        helps: The specificity is at least `_FEW_SPARED`.
    """

    measured: MeasuredEvidence
    data: str
    images: str
    case: str
    helps: bool


def page_files(
    policy: Policy,
    classes: Collection[str],
    precision: Precision,
    *,
    is_audited: bool,
    reads_dicom: bool,
    by_code: Mapping[str, Language],
) -> Mapping[str, PageFile]:
    """The files of the page by name, with an index for each language.

    Args:
        policy: The page takes the words for its target, and shows its performance.
        classes: Of the default model; without those of the target, the page classifies only.
        precision: Of the default model, whose evidence the page shows.
        is_audited: Whether decisions are recorded.
        reads_dicom: Whether DICOM files are accepted.
        by_code: The languages.
    """
    by_name = dict(_read())
    styles = b"".join(by_name[f"{name}.css"].content for name in _STYLES)
    script = _bundled(
        {name: file.content.decode() for name, file in by_name.items() if name.endswith(".js")}
    ).encode()
    by_name[STYLE] = PageFile.of(styles, TYPES_BY_EXTENSION[".css"])
    by_name[SCRIPT] = PageFile.of(script, TYPES_BY_EXTENSION[".js"])
    index = by_name.pop(INDEX)
    template = _environment().from_string(index.content.decode())
    evidence = policy.evidence_in(precision)
    for code, t in by_code.items():
        page = template.render(
            t=t.template_text,
            language=t,
            languages=by_code,
            catalogue={
                "messages": {**t.messages, **texts.answer_texts(policy, t)},
                "warnings": texts.warning_texts(t),
            },
            applies=set(policy.target.classes) <= set(classes),
            of_skin=policy.target.classes == default_policy().target.classes,
            is_audited=is_audited,
            reads_dicom=reads_dicom,
            policy=policy,
            file_kinds={"length": SNIFFED_BYTES, "kinds": _kinds(reads_dicom, t), "kept": _KEPT},
            notice=texts.not_established(policy, evidence, precision, t),
            measured=() if evidence is None else _measured_rows(evidence, t),
            performance=texts.performance(policy, evidence, t),
            percent=partial(_percent, t=t),
            texts=texts,
        )
        file = PageFile.of(page.encode(), index.media_type, t.tag)
        by_name[page_name(code)] = file
    return by_name


def page_name(code: str) -> str:
    """The name of the page in a language."""
    return f"index.{code}.html"


def _environment() -> Environment:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["capitalised"] = _capitalised
    return environment


def _kinds(reads_dicom: bool, t: Language) -> list[dict[str, object]]:
    """The kinds of files whose metadata the page cannot remove, and which of them are answered."""
    return [
        {
            "name": t(kind.name),
            "pattern": kind.pattern,
            "advice": t(kind.advice),
            "is_read": reads_dicom and kind is DICOM_KIND,
        }
        for kind in KINDS
    ]


def _measured_rows(evidence: Evidence, t: Language) -> list[_MeasuredRow]:
    """The measurements, in their order."""
    return [
        _MeasuredRow(
            one,
            texts.data_name(one.data, t),
            t(_IMAGES[name]) if (name := one.data.replace(",", " ").split()[0]) in _IMAGES else "",
            t(_CASES[one.unit]),
            one.others.specificity >= _FEW_SPARED,
        )
        for one in evidence.measured
    ]


def _read() -> Iterator[tuple[str, PageFile]]:
    """Yields names and files as they are stored."""
    for file in files("eulerlora_clinic.service").joinpath("page").iterdir():
        media_type = TYPES_BY_EXTENSION.get(PurePath(file.name).suffix)
        if media_type is not None:  # skips folders, and files left by editors and desktops
            yield file.name, PageFile.of(file.read_bytes(), media_type)


def _bundled(modules: Mapping[str, str]) -> str:
    """The modules as one script: each after those that it imports, in one scope.

    Modules must not define the same name at their top level, and must not rename imports.
    """
    texts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in texts:
            return
        texts[name] = ""  # modules may import each other
        for imported in _IMPORT.findall(modules[name]):
            add(imported)
        del texts[name]
        texts[name] = re.sub("^export ", "", _IMPORT.sub("", modules[name]), flags=re.MULTILINE)

    add(_MAIN)
    return "".join(texts.values())


def _percent(share: float, t: Language) -> str:
    """A share in [0, 1] in percent, with one digit unless it is whole."""
    return t.percent(share, 0 if round(100 * share, 1).is_integer() else 1)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
