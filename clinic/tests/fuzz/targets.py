"""What is fuzzed of the clinic; see `tests.fuzz.targets`."""

from functools import cache

from starlette.testclient import TestClient

from clinic.tests.fuzz.bodies import PROTOCOLS, dicom_files
from clinic.tests.runs import mel_policy
from clinic.tests.service.conftest import app_of
from eulerlora import EulerLoRA
from eulerlora_clinic.policy.policy import default_policy_text, read_policy
from eulerlora_contract.errors import SettingsError
from eulerlora_contract.problems import Problem
from service.decoding.decode import decode
from tests.fuzz.bodies import Draw
from tests.fuzz.fuzzer import Target
from tests.fuzz.targets import SMALL, check_answer, checkpoint, file
from tests.service.settings import settings_of

LIMITS = settings_of("images", **(SMALL | {"dicom": True}))


@cache
def service() -> TestClient:
    """A client of a service that accepts DICOM files, with a policy for the tiny model."""
    limits = {"images": {"dicom": True}, "decoding": {"client_s_per_minute": 10_000}}
    model = EulerLoRA.load(checkpoint(), "cpu")
    return TestClient(app_of(model, policy=mel_policy(), **limits)).__enter__()


def triage_body(content: bytes) -> None:
    """Posts a malformed body; its answer is a documented one."""
    draw = Draw(content)
    check_answer(service(), PROTOCOLS[draw.choice([*PROTOCOLS])](draw))


TARGETS = {
    "dicom": Target(
        lambda content: decode(content, LIMITS, input_side=32),
        (Problem,),
        lambda: list(dicom_files()),
        1000,
    ),
    "triage-body": Target(triage_body, (), lambda: [bytes(range(256))], 100),
    "policy": Target(
        lambda content: read_policy(file(content)),
        (SettingsError,),
        lambda: [default_policy_text().encode()],
        1000,
    ),
}
