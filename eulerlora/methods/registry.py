"""The method that settings name."""

from eulerlora.method_settings import (
    BLoBSettings,
    EulerLoRASettings,
    GaussianCoefficientsSettings,
    IVONSettings,
    LaplaceSettings,
    MethodSettings,
    RankDropoutSettings,
    SWAGSettings,
    TFBSettings,
)
from eulerlora.methods.blob import BLoBMethod
from eulerlora.methods.contract import Method, NetworkShape
from eulerlora.methods.gaussian_coefficients import GaussianCoefficientsMethod
from eulerlora.methods.gaussian_weights import GaussianWeightsMethod
from eulerlora.methods.masks import EulerLoRAMethod, RankDropoutMethod


def build_method(settings: MethodSettings, shape: NetworkShape) -> Method:
    """Returns the method for a network of this shape."""
    match settings:
        case EulerLoRASettings():
            return EulerLoRAMethod(settings, shape)
        case RankDropoutSettings():
            return RankDropoutMethod(settings, shape)
        case GaussianCoefficientsSettings():
            return GaussianCoefficientsMethod(settings, shape)
        case BLoBSettings():
            return BLoBMethod(settings, shape)
        case LaplaceSettings():
            return GaussianWeightsMethod(settings.weights, shape, settings.structure == "kron")
        case IVONSettings() | TFBSettings() | SWAGSettings():
            return GaussianWeightsMethod(settings.weights, shape)
