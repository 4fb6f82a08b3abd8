"""Extensions of other distributions, which are found by their entry points."""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from eulerlora import EulerLoRA
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import Overloaded
from service.extensions import load_extensions
from service.inference.queue import RequestQueue
from service.process import effective_settings
from tests.program import succeed
from tests.service.conftest import app_of
from tests.service.key_files import client as client_with
from tests.service.key_files import write_keys

ROOT = Path(__file__).parents[2]
OTHERS = """
import click


class Limited(Extension):
    def __init__(self, most: int = 3) -> None:
        self.most = most


OPTIONS = [click.Option(["--most"], type=int, default=3, envvar="EULERLORA_SERVE_MOST")]


class Taken(Extension):
    def routes(self, service):
        router = APIRouter()
        router.add_api_route("/predict", lambda: None)
        return router


no_extension = print
"""
PNG = {"Content-Type": "image/png"}
Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution `second-reader` with an entry point: (value) -> None.

    Its module is the example of ARCHITECTURE.md.
    """

    def distribution(value: str) -> None:
        information = tmp_path / "second_reader-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: second-reader\nVersion: 1.0\n"
        )
        (information / "entry_points.txt").write_text(
            f"[eulerlora.extensions]\nsecond-reader = {value}\n"
            "[eulerlora.serve_options]\nsecond-reader = second_reader:OPTIONS\n"
        )
        documented = (ROOT / "ARCHITECTURE.md").read_text()
        (example,) = re.findall(r"```python\n(.*?)```", documented, re.DOTALL)
        (tmp_path / "second_reader.py").write_text(example + OTHERS)
        monkeypatch.syspath_prepend(tmp_path)

    return distribution


def test_an_extension_of_another_distribution_sees_answers_and_refuses_them(
    model: EulerLoRA, install: Install, png: bytes
) -> None:
    install("second_reader:SecondReader")
    with TestClient(app_of(model)) as client:
        expected = client.post("/predict", content=png, headers=PNG).json()
        label = client.post("/label", content=png, headers=PNG)
        assert label.text == expected["label"]
        assert label.headers["X-Request-ID"] and "decode;dur=" in label.headers["Server-Timing"]
        assert client.get("/labels").json() == {expected["label"]: 2}
        refused = client.post("/label?samples=4", content=png, headers=PNG)
        assert refused.status_code == 422, refused.text
        unread = client.post("/label", content=b"", headers=PNG)
        assert (unread.status_code, unread.json()) == (422, {"wrong": "invalid_upload"})
        assert 'route="/label"' in client.get("/metrics").text
        document = client.get("/openapi.json").json()
    assert {"/label", "/labels"} <= document["paths"].keys()


def test_requests_of_an_extension_need_keys_and_are_refused_before_their_body(
    model: EulerLoRA, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("second_reader:SecondReader")
    keys = write_keys(tmp_path / "keys", client_with("clinic", "clinic-key"))
    client = TestClient(app_of(model, keys=keys))
    refused = client.post("/label", headers=PNG)
    assert (refused.status_code, refused.json()) == (401, {"wrong": "not_authenticated"})

    def overloaded(*_: object) -> None:
        raise Overloaded("busy", 3)

    monkeypatch.setattr(RequestQueue, "check_capacity", overloaded)
    busy = client.post("/label", headers={**PNG, "X-API-Key": "clinic-key"})
    assert (busy.status_code, busy.json()) == (503, {"wrong": "overloaded"})


@pytest.fixture
def only_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the entry points of all distributions but the core, such as those of the clinic."""

    def of_core(**selected: str) -> EntryPoints:
        points = entry_points(**selected)
        return EntryPoints(one for one in points if one.dist and one.dist.name == "eulerlora")

    for module in ("service.extensions", "service.options"):
        monkeypatch.setattr(f"{module}.entry_points", of_core)


@pytest.mark.usefixtures("only_core")
def test_a_service_without_other_distributions_answers_predict_alone(
    model: EulerLoRA, png: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(SettingsError, match="unknown setting"):
        patch.setenv("EULERLORA_SERVE_MOST", "5")
        effective_settings()
    assert {"--shadow", "--audit", "--policy"} & set(succeed("serve", "--help").out.split()) == {
        "--shadow"
    }
    with TestClient(app_of(model)) as client:
        assert client.post("/predict", content=png, headers=PNG).status_code == 200
        absent = [client.post("/triage", content=png, headers=PNG), client.get("/")]
    assert [(one.status_code, one.json()["code"]) for one in absent] == [(404, "not_found")] * 2
    assert {one.headers["Content-Type"] for one in absent} == {"application/problem+json"}


def test_an_extension_gets_its_options(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("second_reader:Limited")
    assert vars(load_extensions({"second-reader": {"most": 5}})["second-reader"]) == {"most": 5}
    assert "--most" in succeed("serve", "--help").out
    monkeypatch.setenv("EULERLORA_SERVE_MOST", "5")
    effective_settings()  # the variable is known


@pytest.mark.parametrize(
    ("value", "named"),
    [("no_such_module:Extension", "second-reader"), ("second_reader:no_extension", "second-reader"),
     ("second_reader:Taken", "/predict")],
)  # fmt: skip
def test_an_extension_that_cannot_be_used_is_named(
    model: EulerLoRA, install: Install, value: str, named: str
) -> None:
    install(value)
    with pytest.raises(SettingsError) as refused:
        app_of(model)
    assert named in str(refused.value)
