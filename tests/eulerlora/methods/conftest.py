"""Settings of every method, and networks with them on one backbone."""

from eulerlora.methods.settings import (
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

METHODS: dict[str, MethodSettings] = {
    "eulerlora": EulerLoRASettings(),
    "output side": EulerLoRASettings(sides="output"),
    "rank dropout": RankDropoutSettings(kept=0.6),
    "fixed rank": RankDropoutSettings(law="fixed", kept=0.5),
    "gaussian coefficients": GaussianCoefficientsSettings(),
    "blob": BLoBSettings(),
    "ivon": IVONSettings(),
    "dropkey": DropKeySettings(),
    "batch-ensemble": BatchEnsembleSettings(blocks=1),
    "last-layer ensemble": LastLayerEnsembleSettings(),
    "sngp": SNGPSettings(features=32),
    "epinet": EpiNetSettings(hidden=10),
    "tfb": TFBSettings(deviation=0.1, tolerance=0.01, anchors=4),
    "laplace, last layer": LaplaceSettings(layers="last", prior_precision=1.0, images=4),
    "laplace, adapters": LaplaceSettings(layers="adapters", prior_precision=1.0, images=4),
    "laplace, kronecker": LaplaceSettings(
        layers="all", structure="kron", prior_precision=1.0, images=4
    ),
    "swag": SWAGSettings(learning_rate=0.1, steps=4, snapshots=2),
}
