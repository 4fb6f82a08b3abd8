"""Your own pictures, from folder to served model.

Train a calibrated classifier on a folder with a sub-folder for each class. This script draws such a
folder, `shapes`, with `examples/pictures.py`; put the name of yours in its place. It takes a few
minutes on two CPU cores.
"""

# %%
import os
import subprocess
import sys
from pathlib import Path

from pictures import draw_shapes

from eulerlora import EulerLoRA

# Further options of `eulerlora train`, such as --set training.epochs=5.
OPTIONS = os.environ.get("OPTIONS", "").split()


def eulerlora(*arguments: str) -> None:
    """Runs the program `eulerlora`."""
    subprocess.run([sys.executable, "-m", "eulerlora_contract", *arguments], check=True)


draw_shapes(Path("shapes"))

# %% [markdown]
# **Check the data first.** The check finds the same picture in two classes or parts, unreadable
# files and classes with too few images, and says what later figures rest on.

# %%
eulerlora("train", "imagefolder", "--data", "shapes", "--check")

# %% [markdown]
# **Train.** The recipe `imagefolder` needs no settings. The embedded backbone is fast on a CPU;
# leave this setting out to use ViT-B/32 with ImageNet weights. At the end the command prints the
# test accuracy with its interval, and whether the adapters are better than the linear probe that
# the run started from.

# %%
eulerlora(
    "train", "imagefolder", "--data", "shapes", "--out", "run",
    "--set", "backbone.weights=embedded", *OPTIONS,
)  # fmt: skip

# %% [markdown]
# **Use it.** `run/` holds the checkpoint, its model card `README.md` and the report of its test
# part.

# %%
model = EulerLoRA.load("run")
answer = model.predict(["shapes/circle/000.png"], mode="stoch", samples=4)
for name, probability in zip(model.classes, answer.probabilities[0], strict=True):
    print(f"{name:10} {probability:.3f}")
print("unfamiliar:", answer.unfamiliar)

# %% [markdown]
# `unfamiliar` is `None` if the run had too few images for the statistics of its features. Then
# serve the model; the same requests work as for the embedded one:
#
#     eulerlora serve run/
#     curl -F file=@shapes/circle/000.png 'localhost:8000/predict?mode=stoch'
#
# Next: [train on your pictures](../docs/how-to/train.md) has tables with labels and patients,
# settings and backbones; [evaluate](../docs/how-to/evaluate.md) measures more.
