"""A backbone with a head for each of several label sets, and what its pretraining minimises."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import VisionTransformer
from torchvision.ops import StochasticDepth

from eulerlora.backbone import at_image_size, build_backbone
from eulerlora.settings import BackboneSettings
from training.data.seeded import seeded
from training.fit.objective import Objective
from training.fit.recomputation import RecomputedBlocks
from training.fit.run import Run
from training.recipe.pretraining import PretrainingStage


class Classifier(nn.Module):
    """A backbone with linear heads on its class token's features, one for each label set.

    One head over the union of the sets would have to tell the sets apart too, by the look of
    their images, and sets that share classes would compete for them.
    classes: of each set; the heads' logits stand side by side in that order.
    """

    def __init__(
        self, settings: BackboneSettings, stage: PretrainingStage, classes: Sequence[int]
    ) -> None:
        super().__init__()
        shape = settings.model_copy(update={"image_size": stage.image_size})
        self.backbone = build_backbone(shape)
        _drop_branches(self.backbone, stage.stochastic_depth)
        if stage.activation_checkpointing:
            encoder = self.backbone.encoder
            encoder.layers = RecomputedBlocks(OrderedDict(encoder.layers.named_children()))
        self.head = nn.Linear(settings.width, sum(classes))
        self.classes = tuple(classes)

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 3, image_size, image_size). Returns logits (n, all classes)."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def take_weights(self, smaller: "Classifier") -> None:
        """Continues from a classifier of another image size, positions interpolated."""
        resized = at_image_size(smaller.backbone, self.backbone.image_size)
        self.backbone.load_state_dict(resized.state_dict())
        self.head.load_state_dict(smaller.head.state_dict())


class ClassifierObjective(Objective):
    """Cross-entropy within each image's own label set, with label smoothing.

    The stage results in `averaged`, the classifier with the moving average of the weights.
    """

    def __init__(self, model: Classifier, stage: PretrainingStage, run: Run) -> None:
        super().__init__()
        self.model, self.stage, self.run = model, stage, run
        average = get_ema_multi_avg_fn(stage.ema_decay)
        self.average = AveragedModel(model, multi_avg_fn=average).requires_grad_(False)

    def forward(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """labels: (n, all classes), an image's shares within its set; zeros for padding."""
        with seeded(images.device, self.run.seed, step, self.run.share.process):
            logits = self.model(images).float()
        per_set = zip(
            logits.split(self.model.classes, -1), labels.split(self.model.classes, -1), strict=True
        )
        return torch.stack([self._loss(*each) for each in per_set]).sum()

    def weight(self, labels: Tensor) -> Tensor:
        """How many images are no padding."""
        return labels.sum()

    def rows_per_image(self) -> int:
        return 1

    @property
    def averaged(self) -> Classifier:
        """The classifier with the averaged weights."""
        found = self.average.module
        assert isinstance(found, Classifier)
        return found

    def stepped(self) -> None:
        """Lets the average follow the weights."""
        self.average.update_parameters(self.model)

    def averages(self) -> Mapping[str, Tensor]:
        """The averaged weights, and of how many steps they are."""
        found: dict[str, Tensor] = self.average.state_dict()
        return found

    def _loss(self, logits: Tensor, shares: Tensor) -> Tensor:
        """The summed loss of the images of one set; of others the shares are all zero."""
        each = F.cross_entropy(
            logits, shares, label_smoothing=self.stage.label_smoothing, reduction="none"
        )
        return (each * shares.sum(dim=-1)).sum()


def _drop_branches(backbone: VisionTransformer, last: float) -> None:
    """Puts stochastic depth where a branch ends, in place of dropout, which is never used.

    The first block's rate is 0, the last one's `last`, in between it grows evenly.
    """
    blocks = backbone.encoder.layers
    for index, block in enumerate(blocks):
        depth = StochasticDepth(last * index / max(1, len(blocks) - 1), "row")
        block.dropout = block.mlp[-1] = depth
