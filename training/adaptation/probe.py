"""Linear probes: logistic regression on the features of a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, balanced_accuracy_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torchvision.models import VisionTransformer

from eulerlora.preprocess import resize
from eulerlora.vision_transformer import AdaptedVisionTransformer
from training.data.labelled_images import ImageParts, LabelledImage
from training.data.sources import read_image
from training.metrics.classification import macro_auroc
from training.metrics.intervals import Floats, Ints, unit_weights

BATCH = 256
INVERSE_PENALTY = 0.01
"""Inverse of the ridge penalty on standardised features (scikit-learn's C)."""
ABSENT_CLASS_BIAS = -20.0


@dataclass(frozen=True)
class ProbeResult:
    """Metrics of a linear probe on `images` held-out images; AUROC as `metrics.macro_auroc`."""

    images: int
    accuracy: float
    balanced_accuracy: float
    macro_auroc: float


def linear_probe(
    backbone: VisionTransformer, images: ImageParts, device: torch.device
) -> ProbeResult:
    """Fits a probe on the train part and evaluates it on the calibration part.

    The test part is never read.
    """
    held_out = images.parts["calibration"]
    model = _fit(backbone.to(device).eval(), images.parts["train"])
    probabilities = np.zeros((len(held_out), len(images.classes)))
    probabilities[:, model.classes_] = model.predict_proba(_features(backbone, held_out))
    labels, predicted = _labels(held_out), probabilities.argmax(axis=1)
    return ProbeResult(
        images=len(held_out),
        accuracy=float(accuracy_score(labels, predicted)),
        balanced_accuracy=float(balanced_accuracy_score(labels, predicted)),
        macro_auroc=macro_auroc(probabilities, labels, unit_weights(len(labels))).item(),
    )


def fit_heads(network: AdaptedVisionTransformer, images: ImageParts, device: torch.device) -> None:
    """Sets all heads of a network to the same linear probe of its frozen features.

    A class without training images gets the bias ABSENT_CLASS_BIAS.
    """
    backbone = network.backbone
    scaler, regression = _fit(backbone.to(device), images.parts["train"])
    slopes, offsets = regression.coef_, regression.intercept_
    if len(slopes) == 1:  # for two classes, scikit-learn returns the second class only
        slopes, offsets = np.vstack([0 * slopes, slopes]), np.append(0 * offsets, offsets)
    weight = np.zeros((len(images.classes), backbone.hidden_dim))
    bias = np.full(len(images.classes), ABSENT_CLASS_BIAS)
    weight[regression.classes_] = slopes / scaler.scale_
    bias[regression.classes_] = offsets - slopes @ (scaler.mean_ / scaler.scale_)
    with torch.no_grad():
        network.heads.weight.copy_(torch.from_numpy(weight))
        network.heads.bias.copy_(torch.from_numpy(bias))


def _fit(backbone: VisionTransformer, train: Sequence[LabelledImage]) -> Pipeline:
    model = make_pipeline(StandardScaler(), LogisticRegression(C=INVERSE_PENALTY, max_iter=1000))
    return model.fit(_features(backbone, train), _labels(train))


@torch.inference_mode()
def _features(backbone: VisionTransformer, images: Sequence[LabelledImage]) -> Floats:
    """Returns the class token's features, (n, width)."""
    size, device = backbone.image_size, backbone.class_token.device
    pixels = torch.stack([resize(read_image(image.name, image.source), size) for image in images])
    batches = [backbone(part.to(device)).double().cpu() for part in pixels.split(BATCH)]
    features: Floats = torch.cat(batches).numpy()
    return features


def _labels(images: Sequence[LabelledImage]) -> Ints:
    return np.array([image.label for image in images])
