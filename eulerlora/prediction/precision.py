"""What decides a model's precision: bfloat16 where the device has it and a gate lets it pass.

The gate (`eulerlora.model.gate_fault`) predicts `drawn_pictures`, spots on skin and a plain mix, in
float32 and in bfloat16 with the same draws. A probability may change by at most MAX_CHANGE, and no
label, flag or disposition may change. The pictures come from seeds, so that every machine compares
the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from eulerlora.prediction.answer import Predictions
from eulerlora_client.contract.sampling import AUTO, Precision, PrecisionChoice

MAX_CHANGE = 0.01
SLOW_KERNELS = ("DEFAULT", "NO AVX", "AVX2")
"""Kernels of torch without bfloat16, which ATEN_CPU_CAPABILITY can select on any CPU."""


@dataclass(frozen=True)
class PrecisionDecision:
    """A precision, and why it was chosen, in one line."""

    precision: Precision
    reason: str


def missing_bfloat16(device: torch.device) -> str | None:
    """Returns why bfloat16 is no faster than float32 on a device; None if it is."""
    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return None if has_bfloat16 else f"the device {device} has no bfloat16"
    if device.type != "cpu":
        return f"bfloat16 has not been measured on the device {device}"
    capabilities = torch.cpu.get_capabilities()
    if not (capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")):
        return "the CPU has neither avx512_bf16 nor amx_bf16"
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"torch uses its kernels for {kernels}" if kernels in SLOW_KERNELS else None


def fastest_precision(choice: PrecisionChoice, device: torch.device) -> Precision:
    """Returns the precision of a choice for work that needs no gate, such as training steps.

    `auto` is bfloat16 where the device has it, and float32 elsewhere.
    """
    if choice != AUTO:
        return choice
    return "bfloat16" if missing_bfloat16(device) is None else "float32"


def change_of(exact: Predictions, rounded: Predictions) -> str | None:
    """Returns the first change of a probability, label or flag that the gate refuses, or None."""
    change = (exact.probabilities - rounded.probabilities).abs().max().item()
    if change > MAX_CHANGE:
        return f"a probability of a drawn picture changes by {change:.3f}, over {MAX_CHANGE}"
    changes = [changed("label", exact.labels, rounded.labels)]
    for name, score in exact.ood_scores.items():
        flags, others = score.flagged, rounded.ood_scores[name].flagged
        if flags is not None and others is not None:
            changes.append(changed(f"{name} flag", flags.tolist(), others.tolist()))
    return next((found for found in changes if found is not None), None)


def changed(name: str, values: Sequence[object], others: Sequence[object]) -> str | None:
    """Returns how many values differ, in words; None for equal ones."""
    count = sum(one != other for one, other in zip(values, others, strict=True))
    if not count:
        return None
    return f"the {name} of {count} of {len(values)} drawn pictures changes"


HEIGHT, WIDTH = 150, 200
SPOTS = (
    ((0.90, 0.66, 0.59), (0.45, 0.26, 0.18), 0),
    ((0.93, 0.75, 0.68), (0.70, 0.45, 0.38), 1),
    ((0.80, 0.58, 0.48), (0.20, 0.13, 0.12), 0),
    ((0.95, 0.80, 0.76), (0.75, 0.25, 0.28), 0),
    ((0.55, 0.38, 0.30), (0.32, 0.28, 0.33), 1),
)
"""The colours of skin and spot in sRGB, and the seed, of each picture. The seeds are the first ones
for which no decision of the embedded model is near its boundary, where rounding of any size would
change it."""
MIX_SEED = 101
"""Of the first colour of the mix, chosen in the same way; from 100 on."""
MIN_RADIUS, MAX_RADIUS = 0.35, 0.75
"""Of a spot, relative to half the height and half the width of the picture."""
BORDER, EDGE, TEXTURE, GRAIN = 0.15, 0.06, 0.12, 0.02
"""Irregularity and width of a spot's border; contrast of its inside, and of the whole picture."""


def drawn_pictures() -> list[Tensor]:
    """Returns pictures (3, HEIGHT, WIDTH) uint8: the spots, and a mix of colours."""
    spots = [
        _spot(torch.tensor(skin), torch.tensor(inside), Generator().manual_seed(seed))
        for skin, inside, seed in SPOTS
    ]
    mix = torch.stack(
        [_noise(Generator().manual_seed(MIX_SEED + channel), 4) for channel in range(3)]
    )
    return [_bytes(picture) for picture in (*spots, 0.5 + 0.2 * mix)]


def _spot(skin: Tensor, inside: Tensor, generator: Generator) -> Tensor:
    """Returns (3, HEIGHT, WIDTH). skin, inside: colours (3,)."""
    span = MAX_RADIUS - MIN_RADIUS
    radii = MIN_RADIUS + span * torch.rand(2, generator=generator)
    y, x = torch.linspace(-1, 1, HEIGHT)[:, None], torch.linspace(-1, 1, WIDTH)
    distance = torch.hypot(y / radii[0], x / radii[1]) + BORDER * _noise(generator, 6)
    opacity = torch.sigmoid((1 - distance) / EDGE) * (1 - TEXTURE * _noise(generator, 25).abs())
    colour = skin[:, None, None] + opacity * (inside - skin)[:, None, None]
    return colour * (1 + GRAIN * _noise(generator, 60))


def _noise(generator: Generator, cells: int) -> Tensor:
    """Returns (HEIGHT, WIDTH) noise with about `cells` details along a side."""
    coarse = torch.randn(1, 1, cells, cells, generator=generator)
    return F.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic", align_corners=True)[0, 0]


def _bytes(picture: Tensor) -> Tensor:
    return (255 * picture.clamp(0, 1)).round().to(torch.uint8)
