"""The methods that a checkpoint or a recipe can name, with their hyperparameters.

docs/methods.md has their formulas and sources; `eulerlora.methods` computes them.
"""

from typing import Annotated, Literal

from pydantic import Field

from eulerlora.settings import AdapterSettings
from eulerlora_client.settings import PositiveInt, Settings, optional

Sides = Literal["both", "input", "output"]
Weight = Literal["down", "up", "head"]
"""Tensors of a network: A of every projection, B of every projection, the heads."""
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class EulerLoRASettings(Settings):
    """The paper's method, and LoRA or LoRA-Ensemble with min_rank = rank.

    name: the method.
    sides: the projections that are sampled: all, only Q, K and V (`input`), or only O (`output`).
    """

    name: Literal["eulerlora"] = "eulerlora"
    sides: Sides = "both"


class RankDropoutSettings(Settings):
    """Dropout of whole directions, with one probability at all projections.

    name: the method.
    law: `bernoulli` keeps each direction with probability `kept`; `fixed` keeps a random subset of
    the nearest number of directions, at least one.
    kept: share of the directions that a sample uses; the paper's ranks 10 to 20 of 20 use 0.75.
    """

    name: Literal["rank-dropout"] = "rank-dropout"
    law: Literal["bernoulli", "fixed"] = "bernoulli"
    kept: Annotated[float, Field(gt=0, le=1)] = 0.75


class GaussianCoefficientsSettings(Settings):
    """Normal coefficients with learned mean and scale, after ScalaBL.

    name: the method.
    initial_scale: greatest initial standard deviation; the initial mean is 1.
    prior_scale: standard deviation of the prior, whose mean is 0.
    kl_weight: weight of the divergence from the prior in the loss; 1 is the evidence lower bound.
    """

    name: Literal["gaussian-coefficients"] = "gaussian-coefficients"
    initial_scale: Positive = 0.1
    prior_scale: Positive = 1.0
    kl_weight: NotNegative = 1.0


class BLoBSettings(Settings):
    """Normal elements of A with learned means and scales (BLoB); trained, with new noise per row.

    name: the method.
    initial_scale: greatest initial standard deviation, in units of that of the initial A.
    prior_scale: standard deviation of the prior in the same units; its mean is 0.
    kl_weight: weight of the divergence from the prior in the loss; 1 is the evidence lower bound.
    """

    name: Literal["blob"] = "blob"
    initial_scale: Positive = 0.2
    prior_scale: Positive = 20.0
    kl_weight: NotNegative = 0.01

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down",)


class IVONSettings(Settings):
    """Normal weights of adapters and heads from variational online Newton training (IVON).

    name: the method.
    initial_curvature: of the mean loss, for each weight.
    curvature_decay: of the running curvature, for each step.
    kl_weight: weight of the divergence from the prior in the loss; 1 is the evidence lower bound.
    """

    name: Literal["ivon"] = "ivon"
    initial_curvature: Positive = 0.1
    curvature_decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    kl_weight: Positive = 0.01

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down", "up", "head")


class DropKeySettings(Settings):
    """MC dropout of keys: random attention logits are masked, in training and in mode stoch.

    name: the method.
    rate: probability that a key is masked for a query of a head.
    """

    name: Literal["dropkey"] = "dropkey"
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.2


class BatchEnsembleSettings(Settings):
    """Members that share the frozen weights and multiply inputs and outputs by own factors.

    name: the method.
    blocks: number of last blocks whose projections have factors.
    factor_deviation: standard deviation of the initial factors, whose mean is 1.
    """

    name: Literal["batch-ensemble"] = "batch-ensemble"
    blocks: PositiveInt = 2
    factor_deviation: Positive = 0.1


class LastLayerEnsembleSettings(Settings):
    """Several heads on the frozen backbone.

    name: the method.
    """

    name: Literal["last-layer-ensemble"] = "last-layer-ensemble"


class SNGPSettings(Settings):
    """Adapters of bounded norm and a Gaussian process with random features as head.

    name: the method.
    features: number of random features.
    length_scale: of the process's kernel, in units of the length of the normalised features.
    weight_precision: prior precision of the weights of the random features.
    norm_bound: greatest spectral norm of B A of a projection.
    """

    name: Literal["sngp"] = "sngp"
    features: Annotated[PositiveInt, Field(le=16_384)] = 1024
    length_scale: Positive = 0.5
    weight_precision: Positive = 0.1
    norm_bound: Positive = 2.0


class EpiNetSettings(Settings):
    """Heads with a small network that also reads a random index (epistemic neural network).

    name: the method.
    index_dimension: number of elements of the index.
    hidden: units of the hidden layer of the learned network and of the fixed prior network.
    prior_weight: factor of the prior network.
    """

    name: Literal["epinet"] = "epinet"
    index_dimension: Annotated[PositiveInt, Field(le=1024)] = 8
    hidden: Annotated[PositiveInt, Field(le=16_384)] = 50
    prior_weight: NotNegative = 1.0


class TFBSettings(Settings):
    """Training-free Bayesianization of finished adapters: noise on A of one size in weight space.

    deviation: standard deviation of each element of the noise that U adds to the weights.
    tolerance: accepted share of anchors with another label. anchors: their number.
    """

    name: Literal["tfb"] = "tfb"
    deviation: NotNegative
    tolerance: Annotated[float, Field(ge=0, lt=1)]
    anchors: Annotated[int, Field(ge=1)]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down",)


class LaplaceSettings(Settings):
    """Laplace approximation around finished adapters.

    layers: `last` samples the heads, `adapters` samples A and B, `all` samples both.
    structure: of the curvature: its diagonal, or Kronecker factors of every matrix.
    prior_precision: of every element. images: from which the curvature was estimated.
    """

    name: Literal["laplace"] = "laplace"
    layers: Literal["last", "adapters", "all"]
    structure: Literal["diagonal", "kron"] = optional("diagonal")
    prior_precision: Positive
    images: Annotated[int, Field(ge=1)]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        named: dict[str, tuple[Weight, ...]] = {
            "last": ("head",),
            "adapters": ("down", "up"),
            "all": ("down", "up", "head"),
        }
        return named[self.layers]


class SWAGSettings(Settings):
    """Moments of the weights along SGD from finished adapters (diagonal SWAG).

    learning_rate: constant. steps: of SGD. snapshots: from which the moments were computed.
    """

    name: Literal["swag"] = "swag"
    learning_rate: Positive
    steps: Annotated[int, Field(ge=1)]
    snapshots: Annotated[int, Field(ge=2)]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down", "up", "head")


GaussianWeightsSettings = BLoBSettings | IVONSettings | TFBSettings | LaplaceSettings | SWAGSettings
"""Methods that sample elements of tensors."""

TrainedMethod = (
    EulerLoRASettings
    | RankDropoutSettings
    | GaussianCoefficientsSettings
    | BLoBSettings
    | IVONSettings
    | DropKeySettings
    | BatchEnsembleSettings
    | LastLayerEnsembleSettings
    | SNGPSettings
    | EpiNetSettings
)
TrainedMethodSettings = Annotated[TrainedMethod, Field(discriminator="name")]
"""A method that a recipe can train; the others are fitted to a finished checkpoint."""

MethodSettings = Annotated[
    TrainedMethod | TFBSettings | LaplaceSettings | SWAGSettings, Field(discriminator="name")
]
"""Any method of a checkpoint."""

EULERLORA = EulerLoRASettings()
ENSEMBLES = (BatchEnsembleSettings, LastLayerEnsembleSettings)
"""Methods whose members have no adapters; the rank has no meaning."""


def is_sampled(method: MethodSettings, adapters: AdapterSettings) -> bool:
    """Returns False if mode stoch draws nothing: LoRA, LoRA-Ensemble and other ensembles."""
    if isinstance(method, EulerLoRASettings):
        return adapters.min_rank < adapters.rank
    return not isinstance(method, ENSEMBLES)


def members_text(method: MethodSettings, adapters: AdapterSettings) -> str:
    """Returns what answers: adapters of a rank, or the members of an ensemble without adapters."""
    if isinstance(method, ENSEMBLES):
        return f"{adapters.adapters} {method.name} members"
    return f"{adapters.adapters} adapters of rank {adapters.rank}"


def law_text(method: MethodSettings, adapters: AdapterSettings) -> str:
    """Returns what a method draws, in some words: the paper's numbers, or a name with settings."""
    if isinstance(method, EulerLoRASettings) and not is_sampled(method, adapters):
        return "not sampled"
    law = f"Kmin {adapters.min_rank}, T {adapters.steps}, sigma {adapters.scale:g}"
    settings = method.model_dump(exclude={"name"}, exclude_defaults=True)
    named = [f"{name} {value}" for name, value in settings.items()]
    if isinstance(method, EulerLoRASettings):
        return ", ".join([law, *named])
    return ", ".join([method.name, *named])
