"""The method that settings name, and a network with it."""

from eulerlora.methods.blob import BLoBMethod
from eulerlora.methods.dropkey import DropKeyMethod
from eulerlora.methods.ensembles import BatchEnsembleMethod, LastLayerEnsembleMethod
from eulerlora.methods.epinet import EpiNetMethod
from eulerlora.methods.gaussian_coefficients import GaussianCoefficientsMethod
from eulerlora.methods.gaussian_weights import GaussianWeightsMethod
from eulerlora.methods.masks import EulerLoRAMethod, RankDropoutMethod
from eulerlora.methods.settings import (
    EULERLORA,
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
from eulerlora.methods.sngp import SNGPMethod
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import Method, NetworkShape
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import AdapterSettings, Preprocessing


def build_network(
    backbone: VisionTransformer,
    adapters: AdapterSettings,
    classes: int,
    preprocessing: Preprocessing | None = None,
    method: MethodSettings = EULERLORA,
) -> AdaptedVisionTransformer:
    """Returns a frozen backbone with the tensors of a method, zero.

    preprocessing: of the images; None does not change their colours.
    """
    shape = NetworkShape(adapters, backbone.settings, classes)
    return AdaptedVisionTransformer(backbone, build_method(method, shape), preprocessing)


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
            return GaussianWeightsMethod(settings, shape, settings.structure == "kron")
        case IVONSettings() | TFBSettings() | SWAGSettings():
            return GaussianWeightsMethod(settings, shape)
        case DropKeySettings():
            return DropKeyMethod(settings, shape)
        case BatchEnsembleSettings():
            return BatchEnsembleMethod(settings, shape)
        case LastLayerEnsembleSettings():
            return LastLayerEnsembleMethod(settings, shape)
        case SNGPSettings():
            return SNGPMethod(settings, shape)
        case EpiNetSettings():
            return EpiNetMethod(settings, shape)
