"""The defaults of a triage request, and a policy that a service describes."""

import pytest

from eulerlora_client.contract.sampling import DEFAULT_SAMPLES
from eulerlora_client.errors import SettingsError
from eulerlora_client.policy.policy import (
    Evidence,
    Sampling,
    default_policy,
    default_sampling,
    policy_of,
)


def evidence(mode: str, samples: int) -> Evidence:
    found = default_policy().evidence
    assert found is not None
    return found.model_copy(update={"mode": mode, "samples": samples})


@pytest.mark.parametrize(
    ("fitted", "given", "expected"),
    [
        (("stoch", 8), (None, None), Sampling("stoch", 8)),
        (("stoch", 8), ("stoch", None), Sampling("stoch", 8)),
        (("stoch", 8), (None, 2), Sampling("stoch", 2)),
        (("stoch", 8), (None, "auto"), Sampling("stoch", "auto")),
        (("stoch", 8), ("det", None), Sampling("det", None)),
        (("det", 1), (None, None), Sampling("det", None)),
        (("det", 1), ("stoch", None), Sampling("stoch", DEFAULT_SAMPLES)),
        (("det", 1), (None, 4), Sampling("det", 4)),  # which the service refuses
    ],
)
def test_missing_values_are_those_of_the_evidence(fitted, given, expected: Sampling) -> None:
    assert default_sampling(evidence(*fitted), *given) == expected


def test_without_evidence_the_defaults_are_those_of_a_prediction() -> None:
    assert default_sampling(None) == Sampling("det", None)
    assert default_sampling(None, "stoch") == Sampling("stoch", DEFAULT_SAMPLES)


def test_keys_of_later_versions_are_ignored_in_a_described_policy() -> None:
    policy = default_policy()
    content = policy.model_dump(mode="json")
    content["later"] = 1
    content["evidence"]["fit"]["later"] = 2
    assert policy_of(content, "the service") == policy


def test_a_described_policy_without_a_key_is_an_error_that_names_it() -> None:
    content = default_policy().model_dump(mode="json")
    del content["quality"]["blurred"]
    with pytest.raises(SettingsError, match=r"^the service: missing key quality\.blurred$"):
        policy_of(content, "the service")
