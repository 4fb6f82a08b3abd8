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
    """The paper's method, and LoRA or LoRA-Ensemble with min_rank = rank."""

    name: Literal["eulerlora"] = "eulerlora"
    """The method."""
    sides: Sides = "both"
    """The projections that are sampled: all, only Q, K and V (`input`), or only O (`output`)."""


class RankDropoutSettings(Settings):
    """Dropout of whole directions, with one probability at all projections."""

    name: Literal["rank-dropout"] = "rank-dropout"
    """The method."""
    law: Literal["bernoulli", "fixed"] = "bernoulli"
    """`bernoulli` keeps each direction with probability `kept`; `fixed` keeps a random subset of
    the nearest number of directions, at least one.
    """
    kept: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Share of the directions that a sample uses; the paper's ranks 10 to 20 of 20 use 0.75."""


class GaussianCoefficientsSettings(Settings):
    """Normal coefficients with learned mean and scale, after ScalaBL."""

    name: Literal["gaussian-coefficients"] = "gaussian-coefficients"
    """The method."""
    initial_scale: Positive = 0.1
    """Greatest initial standard deviation; the initial mean is 1."""
    prior_scale: Positive = 1.0
    """Standard deviation of the prior, whose mean is 0."""
    kl_weight: NotNegative = 1.0
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""


class BLoBSettings(Settings):
    """Normal elements of A with learned means and scales, with new noise per row (BLoB)."""

    name: Literal["blob"] = "blob"
    """The method."""
    initial_scale: Positive = 0.2
    """Greatest initial standard deviation, in units of that of the initial A."""
    prior_scale: Positive = 20.0
    """Standard deviation of the prior in the same units; its mean is 0."""
    kl_weight: NotNegative = 0.01
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down",)


class IVONSettings(Settings):
    """Normal weights of adapters and heads from variational online Newton training (IVON)."""

    name: Literal["ivon"] = "ivon"
    """The method."""
    initial_curvature: Positive = 0.1
    """Of the mean loss, for each weight."""
    curvature_decay: Annotated[float, Field(gt=0, lt=1)] = 0.999
    """Of the running curvature, for each step."""
    kl_weight: Positive = 0.01
    """Weight of the divergence from the prior in the loss; 1 is the evidence lower bound."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down", "up", "head")


class DropKeySettings(Settings):
    """MC dropout of keys: random attention logits are masked, in training and in mode stoch."""

    name: Literal["dropkey"] = "dropkey"
    """The method."""
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Probability that a key is masked for a query of a head."""


class BatchEnsembleSettings(Settings):
    """Members that share the frozen weights and multiply inputs and outputs by own factors."""

    name: Literal["batch-ensemble"] = "batch-ensemble"
    """The method."""
    blocks: PositiveInt = 2
    """Number of last blocks whose projections have factors."""
    factor_deviation: Positive = 0.1
    """Standard deviation of the initial factors, whose mean is 1."""


class LastLayerEnsembleSettings(Settings):
    """Several heads on the frozen backbone."""

    name: Literal["last-layer-ensemble"] = "last-layer-ensemble"
    """The method."""


class SNGPSettings(Settings):
    """Adapters of bounded norm and a Gaussian process with random features as head."""

    name: Literal["sngp"] = "sngp"
    """The method."""
    features: Annotated[PositiveInt, Field(le=16_384)] = 1024
    """Number of random features."""
    length_scale: Positive = 0.5
    """Of the process's kernel, in units of the length of the normalised features."""
    weight_precision: Positive = 0.1
    """Prior precision of the weights of the random features."""
    norm_bound: Positive = 2.0
    """Greatest spectral norm of B A of a projection."""


class EpiNetSettings(Settings):
    """Heads with a small network that also reads a random index (epistemic neural network)."""

    name: Literal["epinet"] = "epinet"
    """The method."""
    index_dimension: Annotated[PositiveInt, Field(le=1024)] = 8
    """Number of elements of the index."""
    hidden: Annotated[PositiveInt, Field(le=16_384)] = 50
    """Units of the hidden layer of the learned network and of the fixed prior network."""
    prior_weight: NotNegative = 1.0
    """Factor of the prior network."""


class TFBSettings(Settings):
    """Training-free Bayesianization of finished adapters: noise on A, equal in weight space."""

    name: Literal["tfb"] = "tfb"
    deviation: NotNegative
    """Standard deviation of each element of the noise that U adds to the weights."""
    tolerance: Annotated[float, Field(ge=0, lt=1)]
    """Accepted share of anchors with another label."""
    anchors: Annotated[int, Field(ge=1)]
    """Number of anchors."""

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The sampled tensors."""
        return ("down",)


class LaplaceSettings(Settings):
    """Laplace approximation around finished adapters."""

    name: Literal["laplace"] = "laplace"
    layers: Literal["last", "adapters", "all"]
    """`last` samples the heads, `adapters` samples A and B, `all` samples both."""
    structure: Literal["diagonal", "kron"] = optional("diagonal")
    """Of the curvature: its diagonal, or Kronecker factors of every matrix."""
    prior_precision: Positive
    """Prior precision of every element."""
    images: Annotated[int, Field(ge=1)]
    """Number of images from which the curvature was estimated."""

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
    """Moments of the weights along SGD from finished adapters (diagonal SWAG)."""

    name: Literal["swag"] = "swag"
    learning_rate: Positive
    """Constant rate of SGD."""
    steps: Annotated[int, Field(ge=1)]
    """Number of steps of SGD."""
    snapshots: Annotated[int, Field(ge=2)]
    """Number of snapshots from which the moments were computed."""

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
