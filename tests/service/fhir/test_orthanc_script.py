"""The script for Orthanc in the documentation, with a substitute of Orthanc's module."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

from service.settings import ServiceSettings
from tests.markdown import code_blocks
from tests.service.decoding.test_dicom import dicom_file
from tests.service.fhir.test_bundle import triage_app
from tests.service.real_server import run_server

PAGE = Path(__file__).parents[3] / "docs" / "protocols.md"


def test_the_script_stores_the_bundle_of_a_picture_and_skips_others(
    model, photo, monkeypatch
) -> None:
    (script,) = (
        block.code for block in code_blocks(PAGE.read_text()) if "import orthanc" in block.code
    )
    instances = {"picture": dicom_file(photo.tobytes()), "report": b"no picture"}
    stored: dict[str, bytes] = {}
    logged: list[str] = []
    callbacks = []
    orthanc = ModuleType("orthanc")
    vars(orthanc).update(
        ChangeType=SimpleNamespace(NEW_INSTANCE=1),
        GetDicomForInstance=instances.__getitem__,
        RestApiPut=stored.__setitem__,
        LogInfo=logged.append,
        RegisterOnChangeCallback=callbacks.append,
    )
    monkeypatch.setitem(sys.modules, "orthanc", orthanc)
    settings = ServiceSettings.model_validate({"images": {"dicom": True}, "deadline_s": 120})
    with run_server(triage_app(model, settings)) as port:
        monkeypatch.setenv("EULERLORA_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("EULERLORA_KEY", "unused")
        exec(script, {})
        for change, instance in ((1, "picture"), (2, "picture"), (1, "report")):
            callbacks[0](change, None, instance)
    ((path, answer),) = stored.items()
    assert path == "/instances/picture/attachments/triage"
    assert json.loads(answer)["resourceType"] == "Bundle"
    assert logged == ["no triage of report: 415"]
