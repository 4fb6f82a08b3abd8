"""Sizes and durations of the service benchmarks."""

from pathlib import Path

from eulerlora_contract.sampling import Mode
from eulerlora_contract.settings import PositiveInt, Settings
from eulerlora_lab.benchmarks.service.images import request_images


class ServicePlan(Settings):
    """A run of `benchmarks.service`; the defaults are those of the published results.

    Attributes:
        options: Of `eulerlora serve`.
        image_count: Number of different images, the first of `image_folder` if it is stated.
        batch_rows: Rows per pass of the engine without a service.
        clients: Of throughput, as `responses` of a run by mode, and `runs`.
        triage_clients: Of triage.
        single_requests: Number of requests one after another.
        deadline_s: Maximum time to a response.
        refusal_s: Maximum time to a refusal.
        overload_s: Duration of a load of `overload` times the capacity, measured over
            `capacity_responses`.
        ready_within_s: Time to recover from it.
        victim_requests: Of a client, with and without an attacker, in `attack_runs` alternating
            runs.
        busy_connections: Of a client that retries at once, for `busy_s`.
    """

    options: tuple[str, ...] = ()
    image_count: PositiveInt = 64
    image_folder: Path | None = None
    batch_rows: PositiveInt = 128
    clients: PositiveInt = 16
    responses: dict[Mode, PositiveInt] = {"det": 960, "stoch": 240}
    runs: PositiveInt = 5
    triage_clients: PositiveInt = 8
    single_requests: PositiveInt = 100
    capacity_responses: PositiveInt = 600
    overload: float = 3.0
    overload_s: float = 60.0
    deadline_s: float = 10.0
    refusal_s: float = 0.1
    ready_within_s: float = 1.0
    victim_requests: PositiveInt = 60
    attack_runs: PositiveInt = 5
    busy_connections: tuple[PositiveInt, ...] = (200, 500)
    busy_s: float = 20.0

    def images(self) -> list[bytes]:
        return request_images(self.image_count, self.image_folder)


FULL_SERVICE = ServicePlan()
SMALL_SERVICE = ServicePlan(
    image_count=4,
    batch_rows=32,
    clients=8,
    responses={"det": 16, "stoch": 8},
    runs=2,
    single_requests=10,
    capacity_responses=16,
    overload_s=3.0,
    victim_requests=5,
    attack_runs=1,
    busy_connections=(50,),
    busy_s=2.0,
)
