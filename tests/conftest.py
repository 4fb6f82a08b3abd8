"""Fixtures of several packages: tiny networks and a tiny checkpoint folder."""

import hashlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models import Weights, WeightsEnum

from eulerlora.checkpoint.config import AdapterConfig, BackboneConfig, CheckpointConfig
from eulerlora.checkpoint.files import save_checkpoint
from eulerlora.checkpoint.weights import tensors_sha256
from eulerlora.methods.registry import DEFAULT_METHOD, build_network
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.method import MethodSettings
from eulerlora.nn.network import AdaptedVisionTransformer, RowNetwork, predict_images
from eulerlora.sampling.adaptive import DecisionMargins, RoundMargins
from eulerlora.sampling.masks import AdapterSettings
from eulerlora.settings import BackboneSettings, Draw
from eulerlora_contract.checkpoints import ClassName, ScoreThreshold, Threshold
from eulerlora_contract.sampling import Options

TINY_BACKBONE = BackboneSettings(
    image_size=32, patch_size=8, layers=2, heads=2, width=16, mlp_width=24
)
TINY_ADAPTERS = AdapterSettings(adapters=2, rank=4, min_rank=2)
CLASSES = ("bkl", "mel", "nv")
DOWNLOADED = "ViT_B_32_Weights.IMAGENET1K_V1"
DET = Options("det", 1, "independent", 1, "float32")
STOCH = Options("stoch", 4, "independent", 1, "float32")
ENERGY = ScoreThreshold(threshold=50.0, kept=0.95, upper_quartile=40.0)
THRESHOLDS = tuple(
    Threshold(options=options, msp=0.5, kept=0.95, images=100, data="synthetic", energy=ENERGY)
    for options in (DET, STOCH)
)

MARGINS = DecisionMargins(
    level=0.9,
    agreement=0.9,
    options=STOCH,
    rounds=tuple(
        RoundMargins(samples=samples, lead=lead, log_odds=0, entropy=0, agreement=0)
        for samples, lead in ((1, 0.67), (2, 0.6))
    ),
    images=100,
    data="synthetic",
)
"""With the random network, images end in different rounds of `samples=auto`."""

needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="the extra openvino is not installed"
)

MakeBackbone = Callable[..., VisionTransformer]
MakeNetwork = Callable[..., AdaptedVisionTransformer]
MakeConfig = Callable[..., CheckpointConfig]


def pytest_configure() -> None:
    """Restores the handler of SIGINT, which a background job of a shell inherits as ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Runs torch on one thread, which is faster for tiny tensors."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def temporary_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stores decoded images in a folder of the test run instead of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EULERLORA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def make_backbone() -> MakeBackbone:
    """(settings, seed) -> a backbone with random parameters, norms and biases included."""
    return random_backbone


@pytest.fixture(scope="session")
def make_network() -> MakeNetwork:
    """(adapters, classes, seed, backbone) -> a network with random adapters."""
    return random_network


@pytest.fixture(scope="session")
def make_config() -> MakeConfig:
    """(network, dtype, **changes) -> the config of a checkpoint of the network."""
    return config_of


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint: 3 classes, 2 adapters of rank 4, thresholds for det and stoch 4, margins.

    All tests share it; a test that changes files uses `checkpoint_copy`.
    """
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    network = random_network()
    config = config_of(network, thresholds=THRESHOLDS, margins=MARGINS)
    save_checkpoint(folder, network, config, "# tiny\n")
    return folder


@pytest.fixture
def checkpoint_copy(checkpoint_folder: Path, tmp_path: Path) -> Path:
    """A copy of `checkpoint_folder` that the test may change."""
    return Path(shutil.copytree(checkpoint_folder, tmp_path / "copy"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder in EULERLORA_DATA; skips the test if there is none."""
    folder = os.environ.get("EULERLORA_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("requires real data: EULERLORA_DATA is not a folder")
    return Path(folder)


@dataclass(frozen=True)
class TinyPublished:
    """Weights published under `name`, with their file in torch's hub cache.

    state: the content of the file. source: the download path, where no file exists.
    """

    name: str
    file: Path
    source: Path
    state: dict[str, torch.Tensor]


@pytest.fixture
def tiny_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyPublished:
    """A tiny entry in place of torchvision's list; it is loaded like the others.

    The weights that a recipe downloads by default are the same.
    """
    model = _tiny_builder(TINY_BACKBONE.image_size)
    model.load_state_dict(random_backbone(seed=5).state_dict(), strict=False)
    file = tmp_path / "weights.pth"
    torch.save(model.state_dict(), file)
    file_name = f"tiny-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.pth"
    cached = tmp_path / "torch_home" / "hub" / "checkpoints" / file_name
    cached.parent.mkdir(parents=True)
    file.rename(cached)
    source = tmp_path / "source" / file_name
    size = (TINY_BACKBONE.image_size,) * 2
    weights = Weights(url=source.as_uri(), transforms=nn.Identity, meta={"min_size": size})
    family = WeightsEnum("TinyWeights", {"V1": weights})
    name = "TinyWeights.V1"
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch_home"))
    known = dict.fromkeys((name, DOWNLOADED), (_tiny_builder, family["V1"]))
    monkeypatch.setattr("eulerlora.checkpoint.weights._published_weights", lambda: known)
    return TinyPublished(name, cached, source, model.state_dict())


def random_backbone(settings: BackboneSettings = TINY_BACKBONE, seed: int = 0) -> VisionTransformer:
    """Returns a backbone with random parameters, so that tests notice any that is not stored.

    The same in all versions of torch, whose initialisation differs between some.
    """
    with torch.random.fork_rng(devices=[]):
        backbone = VisionTransformer(settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return backbone.eval()


def random_network(
    adapters: AdapterSettings = TINY_ADAPTERS,
    classes: int = len(CLASSES),
    seed: int = 0,
    backbone: VisionTransformer | None = None,
    method: MethodSettings = DEFAULT_METHOD,
) -> AdaptedVisionTransformer:
    """A network whose random adapters change the output of the backbone strongly."""
    network = build_network(
        random_backbone(seed=seed) if backbone is None else backbone,
        adapters,
        classes,
        method=method,
    )
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for _, parameter in network.adapter_parameters():
            parameter.normal_(std=0.3, generator=generator)
    return network.eval()


def predict_rows(network: RowNetwork, images: Tensor, draws: Sequence[Draw]) -> list[Tensor]:
    """The log-probabilities (trajectories, classes) of every image."""
    return [output.flat_log_probabilities[0] for output in predict_images(network, images, draws)]


def config_of(
    network: AdaptedVisionTransformer, dtype: torch.dtype = torch.float32, **changes: object
) -> CheckpointConfig:
    """The config of a checkpoint of `network` in `dtype`, with changed fields."""

    def digest(tensors: dict[str, torch.Tensor]) -> str:
        return tensors_sha256({name: tensor.to(dtype) for name, tensor in tensors.items()})

    fields: dict[str, object] = {
        "name": "tiny",
        "backbone": BackboneConfig(
            settings=network.backbone.settings,
            published=None,
            sha256=digest(network.backbone.state_dict()),
            provenance={"recipe": "random weights"},
        ),
        "adapters": AdapterConfig(
            settings=network.settings, sha256=digest(dict(network.adapter_parameters()))
        ),
        "method": network.method.settings,
        "classes": tuple(ClassName(name=name, description=name.upper()) for name in CLASSES),
        "preprocessing": network.preprocessing,
        "provenance": {"recipe": "random weights", "seed": 0},
    }
    return CheckpointConfig.model_validate(fields | changes)


def _tiny_builder(image_size: int) -> models.VisionTransformer:
    return models.VisionTransformer(
        image_size=image_size,
        patch_size=TINY_BACKBONE.patch_size,
        num_layers=TINY_BACKBONE.layers,
        num_heads=TINY_BACKBONE.heads,
        hidden_dim=TINY_BACKBONE.width,
        mlp_dim=TINY_BACKBONE.mlp_width,
    )
