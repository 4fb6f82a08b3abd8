"""An ensemble of heads on the frozen backbone."""

from typing import Literal

from eulerlora.nn.attention import BlockAdapters, FrozenAttention
from eulerlora.nn.method import EnsembleMethod, MethodSettings, TrainingKeys
from eulerlora.settings import AdapterSettings


class LastLayerEnsembleSettings(MethodSettings):
    """Several heads on the frozen backbone."""

    name: Literal["last-layer-ensemble"] = "last-layer-ensemble"
    """The method."""


class LastLayerEnsembleMethod(EnsembleMethod[LastLayerEnsembleSettings]):
    """Heads on the frozen backbone, which runs once for an image."""

    settings_type = LastLayerEnsembleSettings
    features_differ = "image"

    @classmethod
    def check_recipe(cls, adapters: AdapterSettings, training: TrainingKeys) -> None:
        super().check_recipe(adapters, training)
        if training.head == "linear-probe":
            raise ValueError(
                "expected training.head=random or bootstrap-probes with method "
                "last-layer-ensemble, whose members differ in nothing else, got linear-probe"
            )

    def block(self) -> BlockAdapters:
        return FrozenAttention()
