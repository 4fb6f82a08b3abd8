"""A tiny network whose adapters do much, two images, and the coefficients of their trajectories."""

import pytest

from benchmarks.measurement.workload import Workload

SAMPLES = 3


@pytest.fixture
def question(make_network) -> Workload:
    """Two images, two adapters, three samples each."""
    return Workload.of(make_network(), SAMPLES, images=2)
