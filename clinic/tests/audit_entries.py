"""Entries for tests of the audit log."""

from pathlib import Path

from eulerlora_clinic.audit.file import Record, records
from eulerlora_clinic.audit.log import AuditEntry, chain_key
from eulerlora_clinic.policy import policy
from eulerlora_contract.answers import Prediction

SECRET = b"a secret of thirty-two bytes or so"


def verified(*paths: Path) -> list[Record]:
    """Returns the records of a log with SECRET."""
    return list(records(paths, chain_key(SECRET)))


def audit_entry(
    request_id: str = "r1",
    image: bytes = b"pixels",
    triage: policy.Decision | None = None,
    **changes: object,
) -> AuditEntry:
    """Returns the entry of a prediction for the client `clinic`; `changes` replace its fields."""
    fields: dict[str, object] = {
        "request_id": request_id,
        "model": "tiny",
        "revision": "sha256:" + "0" * 64,
        "mode": "stoch",
        "samples": 4,
        "trajectories": 8,
        "seed": 7,
        "label": "nv",
        "probabilities": {"mel": 0.1 + 0.2, "nv": 1 / 3, "ä": 1e-320},
        "entropy": 0.41,
        "expected_entropy": 0.38,
        "mutual_information": 0.03,
        "msp": 1 / 3,
        "ood": False,
        "ood_threshold": 0.52,
        "warnings": [{"code": "converted_to_rgb", "message": "CMYK was converted"}],
    }
    return AuditEntry(Prediction.model_validate(fields | changes), "clinic", image, triage)
