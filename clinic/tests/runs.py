"""Runs of `eulerlora triage`, and rows with fixed values."""

from pathlib import Path
from unittest.mock import patch

from eulerlora_clinic.commands.triage import triage_command
from eulerlora_clinic.policy.results import policy_description
from eulerlora_clinic.report.ranking import TriageRow
from eulerlora_contract import program as program_module
from eulerlora_contract.answers import Disposition, Reason
from tests.eulerlora_client.conftest import Reply
from tests.eulerlora_client.runs import mel_policy, result_of
from tests.program import Completed, run


def triage(*arguments: str | Path) -> Completed:
    """Runs `eulerlora triage ARGUMENTS` in this process."""
    with patch.object(program_module, "program", triage_command):
        return run(*arguments)


def decided(name: str, disposition: Disposition, mel: float = 0.2, *reasons: Reason) -> TriageRow:
    return TriageRow(Path(name), result_of(disposition, mel, *reasons))


def policy_reply() -> Reply:
    content = policy_description(mel_policy()).model_dump_json().encode()
    return 200, {"Content-Type": "application/json"}, content
