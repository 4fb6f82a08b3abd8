"""How long and how often the service is measured."""

from pathlib import Path

from eulerlora.settings import Mode, PositiveInt, Settings

LIBRARIES = ("fastapi", "uvicorn", "h11", "litserve", "mlcommons-loadgen", "pillow")


class Answers(Settings):
    """How many answers one run waits for, by mode."""

    det: PositiveInt
    stoch: PositiveInt

    def of(self, mode: Mode) -> int:
        """Of one mode."""
        return self.det if mode == "det" else self.stoch


class Plan(Settings):
    """One run of `benchmarks.service`; the defaults are those of the published figures.

    options: of `eulerlora serve`. real_images: a folder with HAM10000, for figures on its images
    too. photographs: different ones to ask about. batch_rows: of the engine alone, as the
    service's own limit. clients: that keep the service full. answers, runs: of throughput.
    lone_requests: one after another. peer_clients, peer_answers, peer_runs, peer_trial_answers:
    of the comparison with LitServe, of whose settings `peer_candidates` are tried. deadline_s:
    within which an accepted request is answered; refusal_s: within which another one is refused.
    overload_s: of the load at `overload` times the capacity, which `capacity_answers` show.
    mixed_s: of the mixed input, `settle_s` of which are not looked at for growth. ends: servers
    ended by SIGTERM.
    """

    options: tuple[str, ...] = ()
    real_images: Path | None = None
    photographs: PositiveInt = 64
    batch_rows: PositiveInt = 128
    clients: PositiveInt = 16
    answers: Answers = Answers(det=960, stoch=240)
    runs: PositiveInt = 5
    lone_requests: PositiveInt = 200
    peer_clients: PositiveInt = 16
    peer_answers: PositiveInt = 320
    peer_runs: PositiveInt = 7
    peer_candidates: PositiveInt = 10
    peer_trial_answers: PositiveInt = 160
    capacity_answers: PositiveInt = 600
    overload: float = 3.0
    overload_s: float = 60.0
    deadline_s: float = 10.0
    refusal_s: float = 0.1
    ready_within_s: float = 1.0
    half_open: PositiveInt = 10
    probes: PositiveInt = 100
    mixed_s: float = 600.0
    settle_s: float = 60.0
    ends: PositiveInt = 5


FULL = Plan()
SMALL = Plan(
    photographs=4,
    batch_rows=32,
    clients=8,
    answers=Answers(det=16, stoch=8),
    runs=2,
    lone_requests=10,
    peer_clients=4,
    peer_answers=12,
    peer_runs=2,
    peer_candidates=1,
    peer_trial_answers=4,
    capacity_answers=16,
    overload_s=3.0,
    probes=5,
    mixed_s=6.0,
    settle_s=2.0,
    ends=1,
)
