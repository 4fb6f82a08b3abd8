"""Places of questions among those that wait, their answers, and the batches they run in."""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from torch import Tensor

from service.errors import Problem
from service.inference.engine import Engine, Question


@dataclass(frozen=True)
class Answered:
    """An engine's answer, with the seconds its question waited and the seconds its batch ran.

    log_probabilities: (trajectories, classes).
    """

    log_probabilities: Tensor
    queued_s: float
    ran_s: float


@dataclass(eq=False, repr=False)  # the words for a tensor take long to find
class Place:
    """Room for the rows of one question, which may still have to be decoded.

    deadline: on the monotonic clock, after which it is not run. since: when it was asked; of a
    later round, when the first one was. whole: the place that this one is a part of, if it is.
    """

    engine: Engine
    rows: int
    future: "Future[Answered]" = field(default_factory=Future)
    question: Question | None = None
    deadline: float = 0.0
    since: float = 0.0
    whole: "Place | None" = None

    @property
    def asked(self) -> Question:
        """The question of a place that is in the queue."""
        assert self.question is not None
        return self.question

    def settle(self, outcome: Answered | Problem) -> None:
        """Answers whoever waits for it, if anybody still does."""
        with suppress(InvalidStateError):
            if isinstance(outcome, Problem):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


@dataclass(eq=False, repr=False)
class Batch:
    """Questions of one engine that run together."""

    places: list[Place]

    @property
    def engine(self) -> Engine:
        """The engine of all of them."""
        return self.places[0].engine

    @property
    def rows(self) -> int:
        """The rows of all of them."""
        return sum(place.rows for place in self.places)

    @property
    def questions(self) -> list[Question]:
        """What is asked, in order."""
        return [place.asked for place in self.places]
