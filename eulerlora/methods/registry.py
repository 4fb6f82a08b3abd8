"""The method that settings name."""

from eulerlora.method_settings import EulerLoRASettings, MethodSettings, RankDropoutSettings
from eulerlora.methods.contract import Method, NetworkShape
from eulerlora.methods.masks import EulerLoRAMethod, RankDropoutMethod


def build_method(settings: MethodSettings, shape: NetworkShape) -> Method:
    """Returns the method for a network of this shape."""
    match settings:
        case EulerLoRASettings():
            return EulerLoRAMethod(settings, shape)
        case RankDropoutSettings():
            return RankDropoutMethod(settings, shape)
