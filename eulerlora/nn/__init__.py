"""The network: attention with adapters, methods as it sees them, passes of rows.

The names below are for networks of one's own; docs/how-to/own-code.md has examples.
"""

from eulerlora.nn.attention import adapted_attention, adapted_linear
from eulerlora.nn.backbone import EncoderBlock, VisionTransformer
from eulerlora.nn.method import AdapterHeads, AttentionAdapters, RowDraws
from eulerlora.nn.network import AdaptedVisionTransformer, NetworkOutput
from eulerlora.nn.rows import Rows

__all__ = [
    "AdaptedVisionTransformer",
    "AdapterHeads",
    "AttentionAdapters",
    "EncoderBlock",
    "NetworkOutput",
    "RowDraws",
    "Rows",
    "VisionTransformer",
    "adapted_attention",
    "adapted_linear",
]
