"""A backbone with one head per label set and a projection, and the objective of its pretraining."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.ops import StochasticDepth

from eulerlora.checkpoint.weights import BackboneFile, resized_positions
from eulerlora.images.preprocess import normalise
from eulerlora.nn.backbone import POSITIONS, VisionTransformer
from eulerlora.settings import BackboneSettings, Preprocessing
from eulerlora_lab.pretraining.recipe import PretrainingStage
from training.data.augmentation import seeded
from training.optimisation.batches import IGNORED
from training.optimisation.step import Objective

_TEMPERATURE = 0.2
"""Of the contrastive loss."""
_BLOCK = re.compile(r"backbone\.encoder\.layers\.encoder_layer_(\d+)\.")


class ClassifierOutput(NamedTuple):
    """The output for n images.

    Attributes:
        logits: (n, all classes).
        embeddings: (n, 128), for the contrastive loss.
    """

    logits: Tensor
    embeddings: Tensor


class Classifier(nn.Module):
    """A backbone with linear heads on its class token's features, one for each label set.

    With one head over all sets, the classifier would also have to tell the sets apart, and sets
    that share classes would compete for them. The logits of the heads are concatenated in the order
    of `classes`, their numbers of classes. A projection of the features is used for unlabelled
    images. A new convolutional stem has batch normalisation, which `fold_stem` removes; `start`
    gives its weights and its normalisation of images.
    """

    def __init__(
        self,
        settings: BackboneSettings,
        stage: PretrainingStage,
        classes: Sequence[int],
        start: BackboneFile | None = None,
    ) -> None:
        super().__init__()
        shape = settings.model_copy(update={"image_size": stage.image_size})
        self.preprocessing = Preprocessing(size=stage.image_size)
        self.backbone = VisionTransformer(shape, None if start else nn.BatchNorm2d)
        if start is not None:
            colours = {"mean": start.preprocessing.mean, "std": start.preprocessing.std}
            self.preprocessing = self.preprocessing.model_copy(update=colours)
            self._load_backbone(start.backbone)
        blocks = self.backbone.encoder.layers
        for index, block in enumerate(blocks):  # the rate grows linearly from 0
            rate = stage.stochastic_depth * index / max(1, len(blocks) - 1)
            block.dropout = StochasticDepth(rate, "row")
        self.head = nn.Linear(settings.width, sum(classes))
        self.projection = nn.Sequential(
            nn.Linear(settings.width, settings.width),
            nn.ReLU(),
            nn.Linear(settings.width, 128),
        )
        self.classes = tuple(classes)

    def forward(self, images: Tensor) -> ClassifierOutput:
        """images: (n, 3, image_size, image_size) in [0, 1]."""
        features = self.backbone(normalise(images, self.preprocessing))
        return ClassifierOutput(self.head(features), self.projection(features))

    def fold_stem(self) -> "Classifier":
        """Folds the batch normalisation of the stem into its convolutions; returns itself in
        evaluation mode.
        """
        if isinstance(self.backbone.conv_proj, nn.Sequential):
            for layer in self.backbone.conv_proj:
                if isinstance(layer, nn.Sequential) and isinstance(layer[1], nn.BatchNorm2d):
                    convolution, norm, *_ = layer.eval()
                    assert isinstance(convolution, nn.Conv2d)
                    assert isinstance(norm, nn.BatchNorm2d)
                    layer[0], layer[1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()
        return self.eval()

    def load_smaller(self, smaller: "Classifier") -> None:
        """Copies the weights of a classifier of another image size; interpolates positions."""
        self._load_backbone(smaller.backbone)
        self.head.load_state_dict(smaller.head.state_dict())
        self.projection.load_state_dict(smaller.projection.state_dict())

    def _load_backbone(self, backbone: VisionTransformer) -> None:
        state = backbone.state_dict()
        positions = resized_positions(state[POSITIONS], self.backbone.settings)
        self.backbone.load_state_dict(state | {POSITIONS: positions})


class ClassifierObjective(Objective[tuple[int, ...]]):
    """Cross-entropy within the label set of each labelled image, with label smoothing, and the
    contrastive loss of the views of unlabelled images.

    The result of the stage is `averaged`, the classifier with the moving average of the weights.
    """

    def __init__(self, model: Classifier, stage: PretrainingStage) -> None:
        super().__init__(model)
        self.model, self.label_smoothing = model, stage.label_smoothing
        self.contrast_weight = stage.contrast_weight
        self.layer_decay = stage.layer_decay
        self.head_lr_scale = (stage.head_learning_rate or stage.learning_rate) / stage.learning_rate
        average = get_ema_multi_avg_fn(stage.ema_decay)
        self.average = AveragedModel(model, multi_avg_fn=average).requires_grad_(False)

    def draw(self, seed: int, step: int, process: int) -> tuple[int, ...]:
        """The seed of the stochastic depth, which draws from torch's global generator."""
        return seed, step, process

    def loss(
        self,
        network: Callable[..., Any],
        images: Tensor,
        labels: Tensor,
        draw: tuple[int, ...],
    ) -> Tensor:
        """labels: (n,) as those of `PretrainingSet`s counted over all sets; IGNORED for padding."""
        with seeded(images.device, *draw):
            output: ClassifierOutput = network(images)
        unlabelled = labels >= sum(self.model.classes)
        loss = self.contrast_weight * _contrastive_loss(
            output.embeddings[unlabelled].float(), labels[unlabelled]
        )
        first = 0
        for logits in output.logits.float().split(self.model.classes, dim=-1):
            own = (labels >= first) & (labels < first + logits.shape[-1])
            loss = loss + F.cross_entropy(
                logits,
                torch.where(own, labels - first, IGNORED),
                label_smoothing=self.label_smoothing,
                ignore_index=IGNORED,
                reduction="sum",
            )
            first += logits.shape[-1]
        return loss

    def weight(self, labels: Tensor) -> Tensor:
        unlabelled = labels >= sum(self.model.classes)
        return torch.where(unlabelled, self.contrast_weight, (labels >= 0).float()).sum()

    @property
    def averaged(self) -> Classifier:
        classifier = self.average.module
        assert isinstance(classifier, Classifier)
        return classifier

    def lr_scale(self, name: str) -> float:
        """`layer_decay` to the power of the parameter's distance from the final norm."""
        if not name.startswith("backbone."):
            return self.head_lr_scale
        if name.startswith("backbone.encoder.ln."):
            return 1.0
        blocks = self.model.backbone.settings.layers
        block = _BLOCK.match(name)
        return float(self.layer_decay ** (blocks - int(block[1]) if block else blocks + 1))

    def after_step(self) -> None:
        self.average.update_parameters(self.model)

    def extra_state(self) -> Mapping[str, Tensor]:
        tensors: dict[str, Tensor] = self.average.state_dict()
        return tensors


def _contrastive_loss(embeddings: Tensor, numbers: Tensor) -> Tensor:
    """The summed loss of views: the cross-entropy of their similarities to other views.

    The target of a view is the other views of the same image (NT-Xent, Chen et al., "A Simple
    Framework for Contrastive Learning of Visual Representations", ICML 2020). A view without
    another one of its image has loss 0. `embeddings` are (n, width), `numbers` (n,) those of the
    images.
    """
    unit = F.normalize(embeddings, dim=-1)
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    similarity = (unit @ unit.T / _TEMPERATURE).masked_fill(itself, -torch.inf)
    partners = (numbers[:, None] == numbers) & ~itself
    log_share = similarity.log_softmax(dim=-1).masked_fill(~partners, 0.0)
    return -(log_share.sum(dim=-1) / partners.sum(dim=-1).clamp(min=1)).sum()
