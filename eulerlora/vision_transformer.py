"""A frozen Vision Transformer with adapters.

(images, rows, draws) -> logits and features of every row.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Generator, Tensor, nn

from eulerlora.adapted_attention import BlockAdapters
from eulerlora.backbone_network import VisionTransformer
from eulerlora.method_registry import build_method
from eulerlora.method_settings import EULERLORA, MethodSettings
from eulerlora.methods.contract import NetworkShape
from eulerlora.row_draws import RowDraws
from eulerlora.row_pass import Block, NetworkOutput, run_pass
from eulerlora.row_stages import PassPart
from eulerlora.rows import Rows
from eulerlora.settings import AdapterSettings, Draw, Preprocessing


class AdaptedVisionTransformer(nn.Module):
    """A frozen backbone with adapters in every block.

    Mode, steps and seed determine the draws; the network is a deterministic function of images and
    draws. Only the adapters and their heads are trainable. preprocessing: of the images; None does
    not change their colours. method: how rows are drawn and computed.
    """

    def __init__(
        self,
        backbone: VisionTransformer,
        settings: AdapterSettings,
        classes: int,
        preprocessing: Preprocessing | None = None,
        method: MethodSettings = EULERLORA,
    ) -> None:
        super().__init__()
        shape = backbone.settings
        self.preprocessing = preprocessing or Preprocessing(size=shape.image_size)
        self.backbone = backbone.requires_grad_(False).eval()
        self.settings = settings
        self.method_settings = method
        self.method = build_method(method, NetworkShape(settings, shape, classes))
        self.blocks = nn.ModuleList(self.method.blocks())
        self.heads = self.method.heads()

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    def initialise(self, generator: Generator) -> None:
        """Draws the adapters and heads; trajectories then have the features of the backbone, or
        nearly (`BlockAdapters.initialise`)."""
        for block in self.blocks:
            assert isinstance(block, BlockAdapters)
            block.initialise(generator)
        self.heads.initialise(generator)

    def train(self, mode: bool = True) -> "AdaptedVisionTransformer":
        """Sets the training mode of the adapters; the backbone stays in evaluation mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def adapter_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields names and parameters of the adapters and heads, in a fixed order."""
        for name, parameter in self.named_parameters():
            if not name.startswith("backbone."):
                yield name, parameter

    def divergence(self) -> Tensor | None:
        """Returns the sum over blocks of `BlockAdapters.divergence`, or None."""
        divergences = [
            block.divergence() for block in self.blocks if isinstance(block, BlockAdapters)
        ]
        learned = [divergence for divergence in divergences if divergence is not None]
        return torch.stack(learned).sum() if learned else None

    def constrain(self) -> None:
        """Moves the tensors of all blocks into their admissible sets (`BlockAdapters`)."""
        for block in self.blocks:
            assert isinstance(block, BlockAdapters)
            block.constrain()

    def draw_rows(self, draws: Sequence[Draw]) -> RowDraws:
        """Returns the random input of the rows of images, on the CPU. draws: one per image.

        The rows of an image are drawn from its draw alone.
        """
        counts = [self.settings.adapters * draw.count for draw in draws]
        return RowDraws.cat([self.method.draw(draw) for draw in draws], counts)

    def forward(
        self, images: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> Tensor:
        """Returns logits (rows, classes); arguments as in `outputs`."""
        return self.outputs(images, rows, draws, block).logits

    def outputs(
        self, images: Tensor, rows: Rows, draws: RowDraws, block: Block | None = None
    ) -> NetworkOutput:
        """Returns logits and features of every row.

        images: (n, 3, image_size, image_size) in [0, 1]. draws: on the device of the images.
        block: computes one block, `adapted_block` if None; training may pass one that recomputes
        activations.
        """
        return run_pass([PassPart(self, images, rows, draws)], block)[0]
