"""A workload on a tiny network with large adapters."""

import pytest

from benchmarks.measurement.workload import Workload

SAMPLES = 3


@pytest.fixture
def workload(make_network) -> Workload:
    """Returns a workload of two images, with two adapters and three samples per adapter."""
    return Workload.of(make_network(), SAMPLES, images=2)
