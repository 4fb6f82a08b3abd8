"""The method that settings name."""

from eulerlora.method_settings import (
    BatchEnsembleSettings,
    BLoBSettings,
    DropKeySettings,
    EpiNetSettings,
    EulerLoRASettings,
    GaussianCoefficientsSettings,
    IVONSettings,
    LaplaceSettings,
    LastLayerEnsembleSettings,
    MethodSettings,
    RankDropoutSettings,
    SNGPSettings,
    SWAGSettings,
    TFBSettings,
)
from eulerlora.methods.blob import BLoBMethod
from eulerlora.methods.contract import Method, NetworkShape
from eulerlora.methods.gaussian_coefficients import GaussianCoefficientsMethod
from eulerlora.methods.gaussian_weights import GaussianWeightsMethod
from eulerlora.methods.masks import EulerLoRAMethod, RankDropoutMethod
from eulerlora.structured_methods.dropkey import DropKeyMethod
from eulerlora.structured_methods.ensembles import BatchEnsembleMethod, LastLayerEnsembleMethod
from eulerlora.structured_methods.epinet import EpiNetMethod
from eulerlora.structured_methods.sngp import SNGPMethod


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
        case DropKeySettings():
            return DropKeyMethod(settings, shape)
        case BatchEnsembleSettings():
            return BatchEnsembleMethod(settings, shape)
        case LastLayerEnsembleSettings():
            return LastLayerEnsembleMethod(shape)
        case SNGPSettings():
            return SNGPMethod(settings, shape)
        case EpiNetSettings():
            return EpiNetMethod(settings, shape)
