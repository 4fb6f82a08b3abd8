"""Sizes and durations of the service benchmarks."""

from pathlib import Path

from eulerlora_client.contract.sampling import Mode
from eulerlora_client.settings import PositiveInt, Settings

LIBRARIES = ("fastapi", "uvicorn", "h11", "litserve", "mlcommons-loadgen", "pillow")


class ResponseCounts(Settings):
    """Number of responses of a run, by mode."""

    det: PositiveInt
    stoch: PositiveInt

    def of(self, mode: Mode) -> int:
        """Returns the number for a mode."""
        return self.det if mode == "det" else self.stoch


class Plan(Settings):
    """A run of `benchmarks.service`; the defaults are those of the published results.

    options: of `eulerlora serve`. real_images: a folder with HAM10000, to measure throughput on
    its images too. image_count: number of different images. batch_rows: rows per pass of the
    engine without a service. clients, responses, runs: of throughput. single_requests: number of
    requests one after another; photographs: the same of 12 megapixels. peer_clients,
    peer_responses, peer_runs, peer_trial_responses: of the comparison with LitServe, with
    `peer_candidates` of its settings. deadline_s: maximum time to a response; refusal_s: maximum
    time to a refusal. overload_s: duration of a load of `overload` times the capacity, measured
    over `capacity_responses`. half_open: number of stalled connections; probes: requests
    meanwhile. mixed_s: duration of mixed input; memory growth is measured after `warmup_s`.
    terminations: number of servers terminated by SIGTERM. victim_requests: of a client, with and
    without an attacker, in `attack_runs` alternating runs;
    slow_upload_s: duration of an upload. starts: of the service, after a first one.
    """

    options: tuple[str, ...] = ()
    real_images: Path | None = None
    image_count: PositiveInt = 64
    batch_rows: PositiveInt = 128
    clients: PositiveInt = 16
    responses: ResponseCounts = ResponseCounts(det=960, stoch=240)
    runs: PositiveInt = 5
    single_requests: PositiveInt = 200
    photographs: PositiveInt = 40
    peer_clients: PositiveInt = 16
    peer_responses: PositiveInt = 320
    peer_runs: PositiveInt = 7
    peer_candidates: PositiveInt = 10
    peer_trial_responses: PositiveInt = 160
    capacity_responses: PositiveInt = 600
    overload: float = 3.0
    overload_s: float = 60.0
    deadline_s: float = 10.0
    refusal_s: float = 0.1
    ready_within_s: float = 1.0
    half_open: PositiveInt = 10
    probes: PositiveInt = 100
    mixed_s: float = 600.0
    warmup_s: float = 60.0
    terminations: PositiveInt = 5
    victim_requests: PositiveInt = 100
    attack_runs: PositiveInt = 5
    slow_upload_s: float = 12.0
    starts: PositiveInt = 5


FULL = Plan()
SMALL = Plan(
    image_count=4,
    batch_rows=32,
    clients=8,
    responses=ResponseCounts(det=16, stoch=8),
    runs=2,
    single_requests=10,
    photographs=2,
    peer_clients=4,
    peer_responses=12,
    peer_runs=2,
    peer_candidates=1,
    peer_trial_responses=4,
    capacity_responses=16,
    overload_s=3.0,
    probes=5,
    mixed_s=6.0,
    warmup_s=2.0,
    terminations=1,
    victim_requests=5,
    attack_runs=1,
    slow_upload_s=1.0,
    starts=1,
)
