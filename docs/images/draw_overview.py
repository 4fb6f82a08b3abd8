"""Draws the picture of the README from answers of the embedded model.

Run: python docs/images/draw_overview.py

A drawn lesion and a drawn house, the eight trajectories of each answer, and what the answer says.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image

from eulerlora import EulerLoRA, Predictions

PAGE = Path(__file__).parents[2] / "service" / "page"
PICTURES = {"a lesion": PAGE / "example-irregular.jpg", "a house": PAGE / "example-house.jpg"}
INK, BAR, DOT, WARNING = "#24292f", "#d0d7e5", "#3f51b5", "#b3261e"


def draw_trajectories(axes: Axes, prediction: Predictions, classes: tuple[str, ...]) -> None:
    """Draws the mean probability of each class as a bar, and each trajectory as a point."""
    order = np.argsort(prediction.probabilities[0].numpy())[-4:]
    trajectories = prediction.trajectories[0].numpy()[:, order]
    colour = "#b6bac4" if prediction.unfamiliar else DOT
    axes.barh(range(4), prediction.probabilities[0].numpy()[order], 0.62, color=BAR)
    offsets = np.linspace(-0.24, 0.24, len(trajectories))
    for values, offset in zip(trajectories, offsets, strict=True):
        axes.scatter(values, np.arange(4) + offset, 9, color=colour, zorder=2)
    axes.set_yticks(range(4), [classes[index] for index in order])
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)


def statements(prediction: Predictions) -> list[tuple[str, str]]:
    """Returns the lines beside a picture, each with its colour."""
    if prediction.unfamiliar:
        return [
            ("unfamiliar", WARNING),
            ("unlike the training pictures:", INK),
            ("the probabilities say", INK),
            ("nothing about it", INK),
        ]
    return [
        (f"{prediction.labels[0]}, probability {prediction.msp.item():.2f}", INK),
        (f"entropy {prediction.entropy.item():.2f} nats", INK),
        (f"mutual information {prediction.mutual_information.item():.3f}", INK),
        ("familiar", DOT),
    ]


def draw(file: Path) -> None:
    """Writes the picture as PNG."""
    model = EulerLoRA.default(device="cpu")
    plt.rcParams |= {"font.size": 9, "text.color": INK, "axes.labelcolor": INK}
    figure = plt.figure(figsize=(10, 1.8), dpi=150)
    for column, (title, path) in enumerate(PICTURES.items()):
        prediction = model.predict([path], mode="stoch", samples=4)
        left = 0.5 * column
        picture = figure.add_axes((left, 0.16, 0.14, 0.66))
        picture.imshow(Image.open(path))
        picture.set_axis_off()
        picture.set_title(title, loc="left", fontsize=9)
        axes = figure.add_axes((left + 0.18, 0.16, 0.115, 0.66))
        axes.set_title("8 trajectories, mean", loc="left", fontsize=9)
        draw_trajectories(axes, prediction, model.classes)
        for line, (text, colour) in enumerate(statements(prediction)):
            weight = "bold" if line == 0 or colour != INK else "normal"
            figure.text(left + 0.305, 0.72 - 0.17 * line, text, color=colour, weight=weight)
    figure.savefig(file)
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)


if __name__ == "__main__":
    draw(Path(__file__).with_name("overview.png"))
