"""Does a map of where an answer comes from order the patches of a lesion better than chance?

    python -m eulerlora_lab.attribution --data DIR --out FOLDER [--lesions 200]
        [--checkpoint RUN] [--runtime openvino]

DIR holds HAM10000. FOLDER gets `attribution.npz` with the curves of every lesion, added to after
each one, so that an interrupted run continues; and `attribution.json` with the areas under them.
lab/docs/protocols.md has the protocol, fixed before the first run.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eulerlora.checkpoint.files import DEFAULT_CHECKPOINT
from eulerlora.images.preprocess import content_seed, network_input, resize
from eulerlora.model import EulerLoRA
from eulerlora.nn.attention import adapted_linear
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import ProjectedBlock
from eulerlora.nn.rows import Rows, ViewedRows, of_views, view_order
from eulerlora.settings import Draw
from eulerlora_contract.output_files import atomic_write, write_text
from eulerlora_contract.progress import track
from eulerlora_contract.sampling import RUNTIMES
from training.data.dataset import DataSettings
from training.data.datasets import read_dataset
from training.data.images import LabelledImage, evenly_spaced
from training.evaluation.intervals import Floats, Weights, bootstrap
from training.evaluation.metrics import weighted_mean

_WINDOW = 2
"""Side of a hidden window, in patches."""
_STEPS = 8
"""Of a curve; each hides or shows as many patches."""
_COARSE = 4
"""Pixels that are left of a side of a blurred picture."""
_MAPS = ("hidden-16", "hidden-49", "gradient")
_BASELINES = ("rollout", "random")

_Hide = Callable[[Tensor], Tensor]
"""What stands in the place of hidden pixels: an image (3, size, size) -> the same shape."""

_HIDINGS: Mapping[str, _Hide] = {
    "mean": lambda image: image.mean(dim=(1, 2), keepdim=True).expand_as(image),
    "blur": lambda image: resize(resize(image, _COARSE), image.shape[-1]),
}


class _Picture:
    """A picture with the draws of its answer, which every partly hidden copy of it shares.

    Args:
        model: By torch in float32, for gradients and attention.
        fast: The same checkpoint in the precision and runtime of the curves.

    Attributes:
        side: Number of rows and of columns of patches.
        label: That of the answer.
    """

    def __init__(self, model: EulerLoRA, fast: EulerLoRA, image: LabelledImage) -> None:
        pixels = image.pixels()
        self.model, self.options = model, model.options("stoch")
        self._fast = fast
        self.image = network_input(pixels, model.config.preprocessing)
        self.seed = content_seed(pixels, model.config.sampling_digest)
        settings = model.network.backbone.settings
        self.side, self._patch = settings.image_size // settings.patch_size, settings.patch_size
        self.substitutes = {name: hide(self.image) for name, hide in _HIDINGS.items()}
        (whole,) = self._probabilities([self.image])
        self.label = int(whole.mean(dim=0).argmax())
        self.whole = whole[:, self.label]  # (trajectories,)

    def of_label(self, hidden: Tensor, hiding: str) -> Tensor:
        """The label's probability, (n, trajectories), where patches (n, side, side) are hidden."""
        masks = hidden.repeat_interleave(self._patch, 1).repeat_interleave(self._patch, 2)
        substitute = self.substitutes[hiding]
        pictures = [torch.where(mask, substitute, self.image) for mask in masks]
        return self._probabilities(pictures)[:, :, self.label]

    def _probabilities(self, pictures: Sequence[Tensor]) -> Tensor:
        options = self.options.in_precision(self._fast.precision)
        (of_all,) = self._fast.run([(one, self.seed) for one in pictures], [options])
        of_all.check_finite()
        probabilities: Tensor = of_all.flat_log_probabilities.exp()
        return probabilities  # (n, trajectories, classes)

    def by_hiding(self, step: int) -> Tensor:
        """Change of the probability by hiding, (trajectories, side, side).

        Windows start at every `step` patches. A patch has the mean over its windows.
        """
        starts = range(0, self.side - _WINDOW + 1, step)
        windows = torch.zeros(len(starts) ** 2, self.side, self.side, dtype=torch.bool)
        for index, (top, left) in enumerate((top, left) for top in starts for left in starts):
            windows[index, top : top + _WINDOW, left : left + _WINDOW] = True
        change = self.whole - self.of_label(windows, "mean")  # (windows, trajectories)
        covers = windows.flatten(1).double()
        of_patches: Tensor = (change.T @ covers) / covers.sum(dim=0)
        return of_patches.view(-1, self.side, self.side)

    def by_gradient(self) -> Tensor:
        """The same to first order in the embeddings of the patches, (trajectories, side, side)."""
        seen, views = self._viewed(self.image)
        substitutes, _ = self._viewed(self.substitutes["mean"])
        network = self.model.network
        patches = network.patches(seen.images)
        patches.requires_grad_()
        encoded = network.encode(patches, seen.rows, self._drawn)
        logits = network.heads(encoded.pooled, seen.rows.adapter, self._drawn.head)
        temperature = self.model.config.temperatures[self.options.mode]
        probabilities = (logits.double() / temperature).softmax(dim=-1)[:, self.label]
        (gradient,) = torch.autograd.grad(probabilities.sum(), patches)
        with torch.no_grad():
            change = (gradient * (patches - network.patches(substitutes.images))).sum(dim=-1)
        return self._upright(change[seen.rows.image].double(), views)

    def by_rollout(self) -> Tensor:
        """Attention rollout of the class token, (trajectories, side, side)."""
        seen, views = self._viewed(self.image)
        block, network = _RecordingBlock(self.model), self.model.network
        with torch.inference_mode():
            patches = network.patches(seen.images)
            network.encode(patches, seen.rows, self._drawn, block)
        flow = block.flow[:, 0, -(self.side**2) :]
        place = seen.rows.positions.flatten().argsort()  # rows are computed in this order
        return self._upright(flow[place].double(), views)

    @property
    def _drawn(self) -> RowDraws:
        return self.model.network.draw_rows([Draw.of(self.options, self.seed)])

    def _viewed(self, image: Tensor) -> tuple[ViewedRows, Tensor]:
        draw, adapters = Draw.of(self.options, self.seed), self.model.network.settings.adapters
        views = view_order(draw, adapters).flatten()
        return Rows.of([draw.count], adapters).with_views(image[None], views), views

    def _upright(self, values: Tensor, views: Tensor) -> Tensor:
        """Values (rows, patches) of turned patches, as those of the picture, (rows, side, side)."""
        grid = torch.arange(float(self.side**2)).view(1, 1, self.side, self.side)
        sources = of_views(grid.expand(len(views), -1, -1, -1), views).flatten(1).long()
        upright = torch.empty_like(values).scatter(1, sources, values)
        return upright.view(-1, self.side, self.side)


class _RecordingBlock(ProjectedBlock):
    """Runs blocks and multiplies their attention weights (Abnar and Zuidema, "Quantifying
    Attention Flow in Transformers", ACL 2020).

    Attributes:
        flow: (rows, queries, tokens): the product so far of (attention + identity) / 2.
    """

    def __init__(self, model: EulerLoRA) -> None:
        self._heads = model.network.backbone.settings.heads
        self._projected: list[Tensor] = []
        self.flow = torch.empty(0)

    def projection(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        down: Tensor,
        up: Tensor,
        coefficients: Tensor,
    ) -> Tensor:
        output = adapted_linear(inputs, weight, bias, down, up, coefficients)
        self._projected.append(output)
        if len(self._projected) == 4:  # queries, keys, values, output
            query, key = (
                one.unflatten(-1, (self._heads, -1)).transpose(1, 2) for one in self._projected[:2]
            )
            weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1).mean(dim=1)
            mixed = (weights + torch.eye(*weights.shape[1:])) / 2  # (rows, queries, tokens)
            self.flow = mixed if not self.flow.numel() else mixed @ self.flow
            self._projected.clear()
        return output


def _curves(picture: _Picture, order: Tensor, hiding: str) -> tuple[Floats, Floats]:
    """The label's probability over the share of hidden and of shown patches, (steps + 1,) each.

    `order` are the patches, (side**2,), the most important one first.
    """
    rank = order.argsort().view(picture.side, picture.side)
    counts = torch.linspace(0, len(order), _STEPS + 1).round().view(-1, 1, 1)
    hidden = torch.cat([rank < counts, rank >= counts])  # deletion, then insertion
    values = picture.of_label(hidden, hiding).mean(dim=1).numpy()
    deletion, insertion = np.split(values, 2)
    return deletion, insertion


def _measure(picture: _Picture) -> dict[str, Floats]:
    """The curves of every map, (hidings, 2, steps + 1).

    `strongest` are the value of the patch that matters most by `hidden-49`, and its standard
    deviation over trajectories.
    """
    maps = {
        "hidden-16": picture.by_hiding(_WINDOW),
        "hidden-49": picture.by_hiding(1),
        "gradient": picture.by_gradient(),
        "rollout": picture.by_rollout(),
    }
    orders = {
        name: of_map.mean(dim=0).flatten().argsort(descending=True) for name, of_map in maps.items()
    }
    generator = torch.Generator().manual_seed(picture.seed)
    orders["random"] = torch.randperm(picture.side**2, generator=generator)
    measured = {
        name: np.stack([np.stack(_curves(picture, order, hiding)) for hiding in _HIDINGS])
        for name, order in orders.items()
    }
    by_trajectory = maps["hidden-49"].flatten(1)
    strongest = by_trajectory[:, by_trajectory.mean(dim=0).argmax()]
    measured["strongest"] = np.array([float(strongest.mean()), float(strongest.std())])
    return measured


def _results(stored: Mapping[str, Floats]) -> dict[str, Any]:
    """Areas under the curves of every map, and their differences from both baselines."""
    lesions = np.arange(len(stored["strongest"]))
    areas: dict[str, Any] = {}
    beaten = dict.fromkeys(_MAPS, True)
    for index, curve in itertools.product(range(len(_HIDINGS)), ("deletion", "insertion")):
        place = (slice(None), index, int(curve == "insertion"))
        of_map: dict[str, Floats] = {
            name: np.asarray(np.trapezoid(stored[name][place], axis=-1)) / _STEPS
            for name in (*_MAPS, *_BASELINES)
        }
        of_map |= {
            f"{name} - {baseline}": of_map[name] - of_map[baseline]
            for name, baseline in itertools.product(_MAPS, _BASELINES)
        }
        estimates = bootstrap(partial(_means, of_map), lesions)
        areas[f"{curve}, {[*_HIDINGS][index]}"] = {
            name: estimate and estimate.text() for name, estimate in estimates.items()
        }
        for name, baseline in itertools.product(_MAPS, _BASELINES):
            difference = estimates[f"{name} - {baseline}"]
            assert difference is not None
            better = difference.value > 0 if curve == "insertion" else difference.value < 0
            beaten[name] &= better and difference.differs
    value, deviation = stored["strongest"].T
    return {
        "lesions": len(lesions),
        "better than both baselines": beaten,
        "areas": areas,
        "strongest patch": {
            "change of the probability, median": float(np.median(value)),
            "its standard deviation over trajectories, median": float(np.median(deviation)),
        },
    }


def _means(values: Mapping[str, Floats], weights: Weights) -> dict[str, Floats]:
    return {name: weighted_mean(of_lesions, weights) for name, of_lesions in values.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("--data", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--lesions", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, default=DEFAULT_CHECKPOINT)
    parser.add_argument("--runtime", choices=RUNTIMES, default="openvino")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    model = EulerLoRA.load(words.checkpoint, "cpu")
    fast = EulerLoRA.load(words.checkpoint, "cpu", precision="auto", runtime=words.runtime)
    dataset = read_dataset(DataSettings(kind="ham10000", split="lesion-best-epoch"), words.data)
    of_lesion = {image.cluster_name: image for image in reversed(dataset.parts["validation"])}
    images = evenly_spaced(sorted(of_lesion.values(), key=lambda one: one.name), words.lesions)
    path, stored = words.out / "attribution.npz", dict[str, Floats]()
    if path.exists():
        with np.load(path) as arrays:
            stored = dict(arrays)
    done = len(stored.get("strongest", ()))
    for image in track(images[done:], "maps", "lesions", len(images) - done):
        measured = _measure(_Picture(model, fast, image))
        for name, values in measured.items():
            stored[name] = np.concatenate(
                [*([stored[name]] if name in stored else []), values[None]]
            )
        with atomic_write(path) as partial_file, partial_file.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **stored)
    text = json.dumps(_results(stored), indent=1) + "\n"
    write_text(words.out / "attribution.json", text)
    print(text, flush=True)


if __name__ == "__main__":
    main()
