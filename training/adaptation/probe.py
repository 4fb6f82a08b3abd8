"""Linear probes: heads that are logistic regressions on the features of a frozen backbone."""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from eulerlora.images.preprocess import normalise
from eulerlora.nn.backbone import VisionTransformer
from eulerlora.nn.network import AdaptedVisionTransformer
from eulerlora.settings import Preprocessing
from eulerlora_contract.errors import DataError
from training.data.images import ImageParts, LabelledImage, pixel_batches
from training.evaluation.intervals import Floats, Ints, Weights, bootstrap
from training.evaluation.metrics import log_mean_probability, weighted_mean
from training.evaluation.mode_report import EvaluatedSet
from training.evaluation.report_schema import ProbeComparison

_BATCH = 256
_INVERSE_PENALTY = 0.01
"""Inverse of the ridge penalty on standardised features (scikit-learn's C)."""
_ABSENT_CLASS_BIAS = -20.0


def fit_heads(
    network: AdaptedVisionTransformer,
    images: ImageParts,
    device: torch.device,
    bootstrap_seed: int | None = None,
) -> None:
    """Sets the heads of a network, in place, to linear probes of the train part's frozen features.

    A class without training images gets the bias -20, so that it is never predicted. The backbone
    moves to `device`. Without `bootstrap_seed` all heads get the same probe; otherwise every head
    gets the probe of a bootstrap resample of the lesions (of the images where lesions are unknown).

    Raises:
        DataError: The train part has a single class.
    """
    train = images.parts["train"]
    labels = np.array([image.label for image in train])
    if len(np.unique(labels)) < 2:
        raise DataError(
            f"{images.name}: expected training images of two classes or more for a linear probe, "
            "got one; training.head=random starts without"
        )
    features = _features(network.backbone.to(device), train, network.preprocessing)
    heads = network.heads
    generator = np.random.default_rng(bootstrap_seed)
    for adapter in range(network.settings.adapters):
        weights = np.ones(len(train))
        if bootstrap_seed is not None:
            weights = _bootstrap_weights(train, labels, generator)
        if adapter == 0 or bootstrap_seed is not None:
            probe = make_pipeline(
                StandardScaler(), LogisticRegression(C=_INVERSE_PENALTY, max_iter=1000)
            )
            drawn = weights > 0
            probe.fit(
                features[drawn], labels[drawn], logisticregression__sample_weight=weights[drawn]
            )
            weight, bias = _head(probe, len(images.classes))
        with torch.no_grad():
            heads.weight[adapter].copy_(torch.from_numpy(weight))
            heads.bias[adapter].copy_(torch.from_numpy(bias))


@torch.inference_mode()
def head_log_probabilities(
    network: AdaptedVisionTransformer, images: Sequence[LabelledImage]
) -> Tensor:
    """Log of the mean probability of the heads on the frozen features, (n, classes)."""
    features = torch.from_numpy(_features(network.backbone, images, network.preprocessing)).float()
    heads = network.heads
    logits = torch.einsum("nf,acf->nac", features, heads.weight.cpu()) + heads.bias.cpu()
    return log_mean_probability(logits.log_softmax(dim=-1))


def compare_with_probe(test: EvaluatedSet, probe: Tensor) -> ProbeComparison:
    """Compares a model, in the report's first mode, with a probe on the same test images.

    `probe` is (n, classes) log-probabilities. The intervals are those of the paired differences,
    resampled by group.
    """
    labels, model = test.labels, test.predictions[0].log_probabilities
    log_mean = log_mean_probability(model)
    index = np.arange(len(labels))
    nll = (probe.double() - log_mean.double()).numpy()[index, labels]
    right = [(p.argmax(dim=-1).numpy() == labels).astype(np.float64) for p in (log_mean, probe)]
    clusters = test.clusters

    def differences(weights: Weights) -> dict[str, Floats]:
        return {
            "nll": weighted_mean(nll, weights),
            "accuracy": weighted_mean(right[0] - right[1], weights),
        }

    estimates = bootstrap(differences, clusters)
    return ProbeComparison(
        accuracy=float(right[1].mean()),
        images=len(labels),
        groups=int(clusters.max()) + 1,
        nll_difference=estimates["nll"],
        accuracy_difference=estimates["accuracy"],
    )


def _head(model: Pipeline, classes: int) -> tuple[Floats, Floats]:
    """Weight (classes, width) and bias (classes,) of the head that equals a standardised probe."""
    scaler, regression = model
    slopes, offsets = regression.coef_, regression.intercept_
    if len(slopes) == 1:  # for two classes, scikit-learn returns the second class only
        slopes, offsets = np.vstack([0 * slopes, slopes]), np.append(0 * offsets, offsets)
    weight = np.zeros((classes, slopes.shape[1]))
    bias = np.full(classes, _ABSENT_CLASS_BIAS)
    weight[regression.classes_] = slopes / scaler.scale_
    bias[regression.classes_] = offsets - slopes @ (scaler.mean_ / scaler.scale_)
    return weight, bias


def _bootstrap_weights(
    images: Sequence[LabelledImage], labels: Ints, generator: np.random.Generator
) -> Floats:
    """How often the cluster of each image is drawn, (n,); clusters are drawn equally.

    The images of a class of which none is drawn have weight 1: without any, the probe would exclude
    the class.
    """
    names = [image.cluster_name for image in images]
    clusters, members = np.unique(names, return_inverse=True)
    drawn = generator.integers(len(clusters), size=len(clusters))
    weights = np.bincount(drawn, minlength=len(clusters))[members].astype(np.float64)
    weights[~np.isin(labels, labels[weights > 0])] = 1
    return weights


@torch.inference_mode()
def _features(
    backbone: VisionTransformer,
    images: Sequence[LabelledImage],
    preprocessing: Preprocessing,
) -> Floats:
    """(n, width); at most _BATCH images are in memory."""
    device = backbone.class_token.device
    batches = [
        backbone(normalise(pixels.to(device), preprocessing)).double().cpu()
        for pixels in pixel_batches(images, preprocessing.of_whole_images, _BATCH)
    ]
    features: Floats = torch.cat(batches).numpy()
    return features
