"""Draws the pictures of the README and of a tutorial from answers of the embedded model.

Run: python docs/images/draw_overview.py

Beside each drawn picture stand the eight trajectories of its answer, and what the answer says.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

from eulerlora import EulerLoRA, Predictions

Line = tuple[str, str]
"""Text and colour."""

IMAGES = Path(__file__).parent
PAGE = IMAGES.parents[1] / "clinic" / "eulerlora_clinic" / "service" / "page"
OVERVIEW = {"a lesion": IMAGES / "example-lesion.jpg", "a house": PAGE / "example-house.jpg"}
LESIONS = {
    path.name: path
    for path in (
        PAGE / "example-even.jpg",
        IMAGES / "example-lesion.jpg",
        PAGE / "example-irregular.jpg",
    )
}
COVERAGE = 0.9
INK, DOT, WARNING = "#24292f", "#3f51b5", "#b3261e"


def overview(prediction: Predictions) -> list[Line]:
    """Returns what a prediction of one picture says in the README."""
    if prediction.unfamiliar:
        return [
            ("unfamiliar", WARNING),
            ("unlike the training pictures:", INK),
            ("what its probabilities", INK),
            ("are worth is not known", INK),
        ]
    return [
        (f"{prediction.labels[0]}, probability {prediction.msp.item():.2f}", INK),
        (f"entropy {prediction.entropy.item():.2f} nats", INK),
        (f"mutual information {prediction.mutual_information.item():.3f}", INK),
        ("familiar", DOT),
    ]


def measures(prediction: Predictions) -> list[Line]:
    """Returns what a prediction of one picture says in the tutorial."""
    assert prediction.prediction_sets is not None
    return [
        (f"{prediction.labels[0]}, MSP {prediction.msp.item():.3f}", INK),
        (f"entropy {prediction.entropy.item():.3f} nats", INK),
        (f"mutual information {prediction.mutual_information.item():.3f}", INK),
        (f"set: {', '.join(prediction.prediction_sets.labels[0])}", DOT),
    ]


def draw(
    model: EulerLoRA,
    pictures: Mapping[str, Path],
    lines: Callable[[Predictions], list[Line]],
    file: Path,
    columns: int,
) -> None:
    """Writes pictures, by title, with their answers as PNG."""
    rows = len(pictures) // columns
    figure = plt.figure(figsize=(5 * columns, 1.8 * rows), dpi=150)
    panels = figure.subfigures(rows, columns, squeeze=False).flat
    for panel, (title, path) in zip(panels, pictures.items(), strict=True):
        prediction = model.predict([path], mode="stoch", samples=2, coverage=COVERAGE)
        picture = panel.add_axes((0, 0.16, 0.28, 0.66))
        picture.imshow(Image.open(path))
        picture.set_axis_off()
        picture.set_title(title, loc="left", fontsize=9)
        axes = panel.add_axes((0.36, 0.16, 0.23, 0.66))
        axes.set_title("8 trajectories, mean", loc="left", fontsize=9)
        prediction.plot(axes=axes, classes=4)
        for line, (text, colour) in enumerate(lines(prediction)):
            weight = "bold" if line == 0 or colour != INK else "normal"
            panel.text(0.61, 0.72 - 0.17 * line, text, color=colour, weight=weight)
    figure.savefig(file)
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)


if __name__ == "__main__":
    plt.rcParams |= {"font.size": 9, "text.color": INK, "axes.labelcolor": INK}
    model = EulerLoRA.default(device="cpu")
    draw(model, OVERVIEW, overview, IMAGES / "overview.png", columns=2)
    draw(model, LESIONS, measures, IMAGES / "is-it-sure.png", columns=1)
