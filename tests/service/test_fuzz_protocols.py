"""A short run of the protocols' fuzzer against a real server."""

import pytest

from tests.protocol_bodies import PROTOCOLS

SECONDS = 20.0


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_malformed_body_has_a_documented_answer(
    protocol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pydicom")
    from tests.fuzz_protocols import main  # noqa: PLC0415

    assert main(protocol, SECONDS) == 0, capsys.readouterr().out
