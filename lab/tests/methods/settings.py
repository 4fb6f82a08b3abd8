"""Settings of every method, of which the registry knows the classes."""

from eulerlora.methods.registry import methods
from eulerlora.nn.method import MethodSettings


def settings_of(method: str, **values: object) -> MethodSettings:
    return methods()[method].settings_type(**values)


METHODS: dict[str, MethodSettings] = {
    "eulerlora": settings_of("eulerlora"),
    "rank dropout": settings_of("rank-dropout", kept=0.6),
    "fixed rank": settings_of("rank-dropout", law="fixed", kept=0.5),
    "gaussian coefficients": settings_of("gaussian-coefficients"),
    "blob": settings_of("blob"),
    "bayeslora": settings_of("bayeslora"),
    "ivon": settings_of("ivon"),
    "dropkey": settings_of("dropkey"),
    "batch-ensemble": settings_of("batch-ensemble", blocks=1),
    "last-layer ensemble": settings_of("last-layer-ensemble"),
    "sngp": settings_of("sngp", features=32),
    "epinet": settings_of("epinet", hidden=10),
    "tfb": settings_of("tfb", deviation=0.1, anchors=4),
    "laplace, last layer": settings_of("laplace", layers="last", prior_precision=1.0, images=4),
    "laplace, adapters": settings_of("laplace", layers="adapters", prior_precision=1.0, images=4),
    "laplace, kronecker": settings_of("laplace", structure="kron", prior_precision=1.0, images=4),
    "swag": settings_of("swag", learning_rate=0.1, steps=4, snapshots=2),
}
