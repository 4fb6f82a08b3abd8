"""Features and distances that find unfamiliar pictures: `python -m benchmarks.feature_scores`.

    python -m benchmarks.feature_scores --data DIR

DIR contains HAM10000 and cifar10-jpeg.tar.xz. Prints, for each variant, the share of made sets that
is flagged by the threshold that keeps 95% of the calibration images, and the AUROC against these.
Features are those of mode `det`. Training and calibration images only; no test image is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor

from eulerlora.images.preprocess import network_input
from eulerlora.model import EulerLoRA
from eulerlora.nn.rows import RowDraws, Rows
from eulerlora.sampling.masks import PROJECTIONS
from eulerlora.scores.feature_distance import FeatureDistance, fit_feature_statistics
from training.calibration.thresholds import score_threshold
from training.data.datasets import checkpoint_dataset, read_outliers
from training.data.images import LabelledImage, evenly_spaced, read_image
from training.evaluation.corruptions import Corruption, with_corruption
from training.evaluation.generated_images import noise, plain_skin
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.metrics import auroc
from training.recipe.schema import OutlierSettings
from training.reporting.tables import table

OUTLIERS = "cifar10-jpeg.tar.xz"
NEIGHBOURS = 50
WARM, COLD = (1.0, 0.8, 0.6), (0.75, 0.9, 1.1)  # gains of red, green and blue

Images = Sequence[LabelledImage]
Score = Callable[[Tensor], Tensor]
"""Features (n, d) -> scores (n,), higher for less familiar images."""


@dataclass(frozen=True)
class Features:
    """Features of n images in mode `det`, float32.

    backbone: (n, width), the class token with all coefficients 0. rows: (n, 3 * width), as in
    `NetworkOutput`, means over the rows of an image.
    """

    backbone: Tensor
    rows: Tensor

    def parts(self, count: int) -> Tensor:
        """Returns the first `count` of the three parts of `rows`, (n, count * width)."""
        return self.rows[:, : count * self.backbone.shape[1]]


@dataclass(frozen=True)
class Variant:
    """Features of an image, and the fit of a score to training features (n, d) and labels (n,)."""

    features: Callable[[Features], Tensor]
    fit: Callable[[Tensor, Tensor], Score]


def class_distance(features: Tensor, labels: Tensor) -> Score:
    """Returns the Mahalanobis distance to the nearest class, as in `eulerlora`."""
    return FeatureDistance(fit_feature_statistics(features, labels, int(labels.max()) + 1))


def relative_distance(features: Tensor, labels: Tensor) -> Score:
    """Returns the squared distance to the nearest class minus that to one common Gaussian.

    Ren et al., ICML workshop on uncertainty and robustness in deep learning, 2021.
    """
    nearest = class_distance(features, labels)
    common = class_distance(features, torch.zeros_like(labels))
    return lambda tested: nearest(tested).square() - common(tested).square()


def neighbour_distance(features: Tensor, _labels: Tensor) -> Score:
    """Returns the distance to the 50th nearest training image (Sun et al., ICML 2022).

    To the farthest of fewer images.
    """
    rank = min(NEIGHBOURS, len(features))
    return lambda tested: torch.cdist(tested, features).kthvalue(rank, dim=1).values


VARIANTS: Mapping[str, Variant] = {
    "class token of the backbone (all coefficients 0)": Variant(
        lambda f: f.backbone, class_distance
    ),
    "class token of the rows": Variant(lambda f: f.parts(1), class_distance),
    "the same, nearest neighbours (k = 50)": Variant(lambda f: f.parts(1), neighbour_distance),
    "the same, relative distance": Variant(lambda f: f.parts(1), relative_distance),
    "and patch tokens of the first block": Variant(lambda f: f.parts(2), class_distance),
    "and contrast (**chosen**)": Variant(lambda f: f.parts(3), class_distance),
}


def _gains(name: str, gains: tuple[float, float, float]) -> Corruption:
    def transform(pixels: Tensor) -> Tensor:
        cast = pixels * torch.tensor(gains)[:, None, None]
        return cast.round().clamp(0, 255).to(torch.uint8)

    return Corruption(name, transform)


# Other parameters than those of the evaluated sets in `SHIFTS`, except for inversion.
CHANGES = (
    _gains("dark", (0.5, 0.5, 0.5)),
    Corruption("inverted", lambda pixels: 255 - pixels),
    Corruption("permuted", lambda pixels: pixels[[1, 2, 0]]),
    _gains("warm cast", WARM),
    _gains("cold cast", COLD),
)


@click.command()
@click.option("--data", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--train-images", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--images", type=click.IntRange(1), default=300, show_default=True, help="Per set.")
def main(data: Path, train_images: int, images: int) -> None:
    """Compare features and distances on made pictures."""
    model = EulerLoRA.default()
    parts = checkpoint_dataset(model.config, data).parts
    train = evenly_spaced(parts["train"], train_images)
    calibration = evenly_spaced(parts["calibration"], images)
    outliers = read_outliers(OutlierSettings(path=OUTLIERS, images=images), data).images
    sets = {"CIFAR-10": outliers, **made_sets(train, calibration, images)}
    labels = torch.tensor([image.label for image in train])
    fitted = features_of(model, train, "train")
    kept = features_of(model, calibration, "calibration")
    unfamiliar = {name: features_of(model, members, name) for name, members in sets.items()}
    sizes = ", ".join(f"{len(members)} {name}" for name, members in sets.items())
    click.echo(f"{len(train)} training and {len(calibration)} calibration images; {sizes}\n")
    click.echo(comparison(fitted, labels, kept, unfamiliar))


def made_sets(train: Images, calibration: Images, count: int) -> dict[str, Images]:
    """Returns at most `count` images of noise, of corners of training images without a lesion, and
    of every change of the calibration images, by the name of the set.
    """
    corners = [image for image in plain_skin(train) if "/corner/" in image.name]
    return {
        "noise": evenly_spaced(noise(), count),
        "skin corners": evenly_spaced(corners, count),
        **{change.name: with_corruption(calibration, change) for change in CHANGES},
    }


def features_of(model: EulerLoRA, images: Images, label: str) -> Features:
    """Returns the features of at least one image. label: name of the progress bar."""
    (outputs,) = predict_all(model, images, [SamplingOptions("det")], label)
    return Features(backbone_tokens(model, images), outputs.features.mean(dim=(1, 2)))


@torch.inference_mode()
def backbone_tokens(model: EulerLoRA, images: Images) -> Tensor:
    """Returns the class tokens of the backbone without adapters, (n, width), of unit length."""
    settings, preprocessing = model.network.settings, model.config.preprocessing
    pixels = torch.stack(
        [network_input(read_image(image.name, image.source), preprocessing) for image in images]
    )
    directions = settings.adapters * settings.rank
    zeros = torch.zeros(len(images), model.network.depth, len(PROJECTIONS), directions)
    rows = Rows.of([1] * len(images), adapters=1).to(model.device)
    draws = RowDraws.of_coefficients(zeros.to(model.device))
    output = model.runtime.outputs(pixels.to(model.device), rows, draws)
    return output.features[:, : model.network.backbone.settings.width].cpu()


def comparison(
    train: Features, labels: Tensor, kept: Features, unfamiliar: Mapping[str, Features]
) -> str:
    """Returns a Markdown table with a row per variant: share flagged and AUROC of every set."""
    rows = []
    for name, variant in VARIANTS.items():
        score = variant.fit(variant.features(train), labels)
        familiar = score(variant.features(kept))
        cells = [separation(familiar, score(variant.features(s))) for s in unfamiliar.values()]
        rows.append([name, *cells])
    return table(["share flagged / AUROC", *unfamiliar], rows)


def separation(familiar: Tensor, unfamiliar: Tensor) -> str:
    """Returns the share above the threshold that keeps 95% of the familiar, and the AUROC."""
    flagged = (unfamiliar > score_threshold(familiar).threshold).double().mean()
    scores = torch.cat([familiar, unfamiliar]).double().numpy()
    positive = np.arange(len(scores)) >= len(familiar)
    area = auroc(scores, positive, np.ones((1, len(scores))))
    return f"{float(flagged):.2f} / {area.item():.3f}"


if __name__ == "__main__":
    main()
