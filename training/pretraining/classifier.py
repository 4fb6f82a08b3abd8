"""A backbone with one head per label set, and the objective of its pretraining."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import VisionTransformer
from torchvision.ops import StochasticDepth

from eulerlora.backbone import at_image_size, build_backbone
from eulerlora.settings import BackboneSettings
from training.data.augmentation import seeded
from training.fit.objective import Objective, RecomputedBlocks
from training.recipe.pretraining import PretrainingStage


class Classifier(nn.Module):
    """A backbone with linear heads on its class token's features, one for each label set.

    With one head over all sets, the classifier would also have to tell the sets apart, and sets
    that share classes would compete for them. classes: number of classes of each set; the logits
    of the heads are concatenated in this order.
    """

    def __init__(
        self, settings: BackboneSettings, stage: PretrainingStage, classes: Sequence[int]
    ) -> None:
        super().__init__()
        shape = settings.model_copy(update={"image_size": stage.image_size})
        self.backbone = build_backbone(shape)
        _add_stochastic_depth(self.backbone, stage.stochastic_depth)
        if stage.activation_checkpointing:
            encoder = self.backbone.encoder
            encoder.layers = RecomputedBlocks(OrderedDict(encoder.layers.named_children()))
        self.head = nn.Linear(settings.width, sum(classes))
        self.classes = tuple(classes)

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 3, image_size, image_size). Returns logits (n, all classes)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def load_smaller(self, smaller: "Classifier") -> None:
        """Copies the weights of a classifier of another image size; interpolates positions."""
        resized = at_image_size(smaller.backbone, self.backbone.image_size)
        self.backbone.load_state_dict(resized.state_dict())
        self.head.load_state_dict(smaller.head.state_dict())


class ClassifierObjective(Objective[tuple[int, ...]]):
    """Cross-entropy within the label set of each image, with label smoothing.

    The result of the stage is `averaged`, the classifier with the moving average of the weights.
    """

    def __init__(self, model: Classifier, stage: PretrainingStage) -> None:
        super().__init__(model)
        self.model, self.label_smoothing = model, stage.label_smoothing
        average = get_ema_multi_avg_fn(stage.ema_decay)
        self.average = AveragedModel(model, multi_avg_fn=average).requires_grad_(False)

    def draw(self, seed: int, step: int, process: int) -> tuple[int, ...]:
        """Returns the seed of the stochastic depth, which draws from torch's global generator."""
        return seed, step, process

    def loss(
        self,
        network: Callable[..., Tensor],
        images: Tensor,
        labels: Tensor,
        draw: tuple[int, ...],
    ) -> Tensor:
        """labels: (n, all classes), probabilities within the image's set; zeros for padding."""
        with seeded(images.device, *draw):
            logits = network(images).float()
        classes = self.model.classes
        per_set = zip(logits.split(classes, -1), labels.split(classes, -1), strict=True)
        return torch.stack([self._set_loss(*part) for part in per_set]).sum()

    def weight(self, labels: Tensor) -> Tensor:
        """Returns the number of images without the padding."""
        return labels.sum()

    @property
    def averaged(self) -> Classifier:
        """The classifier with the averaged weights."""
        classifier = self.average.module
        assert isinstance(classifier, Classifier)
        return classifier

    def after_step(self) -> None:
        """Updates the moving average."""
        self.average.update_parameters(self.model)

    def averages(self) -> Mapping[str, Tensor]:
        """Returns the averaged weights and the number of averaged steps."""
        tensors: dict[str, Tensor] = self.average.state_dict()
        return tensors

    def _set_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Returns the summed loss of one set's images; targets of other images are all zero."""
        losses = F.cross_entropy(
            logits, targets, label_smoothing=self.label_smoothing, reduction="none"
        )
        return (losses * targets.sum(dim=-1)).sum()


def _add_stochastic_depth(backbone: VisionTransformer, last_rate: float) -> None:
    """Replaces the dropout at the end of each branch, whose rate is 0, by stochastic depth.

    The rate grows linearly from 0 in the first block to `last_rate` in the last.
    """
    blocks = backbone.encoder.layers
    for index, block in enumerate(blocks):
        depth = StochasticDepth(last_rate * index / max(1, len(blocks) - 1), "row")
        block.dropout = block.mlp[-1] = depth
