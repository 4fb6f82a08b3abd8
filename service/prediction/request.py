"""What a request asks of each of its images."""

from dataclasses import dataclass

from eulerlora.adaptive_sampling import ROUNDS
from eulerlora.settings import AUTO, Auto, Draw
from eulerlora_client.policy import policy
from service.inference.models import ServedModel
from eulerlora_client.contract.queries import PredictQuery


@dataclass(frozen=True)
class Asked:
    """What a request asks of each of its images.

    served: the revision that answers, whatever replaces it meanwhile. samples: as run. deadline:
    on the monotonic clock. client: who asks, None where there are no keys. warnings: of what is
    done otherwise than asked. decider: the policy to decide on the pictures, if any.
    """

    query: PredictQuery
    served: ServedModel
    samples: int | Auto
    deadline: float
    request_id: str
    client: str | None
    warnings: tuple[str, ...] = ()
    decider: policy.Policy | None = None

    def draw(self, seed: int) -> Draw:
        """How each image is to be answered; with `auto`, in its first round."""
        return Draw(
            mode=self.query.mode,
            samples=ROUNDS[0] if self.samples == AUTO else self.samples,
            seed=seed,
            sampler=self.served.model.config.sampler,
        )
