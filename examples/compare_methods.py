"""Compare two methods fairly.

Train EulerLoRA and LoRA on the same pictures with the same seeds, and state their difference with
an interval instead of two numbers.
"""

# %%
import subprocess
import sys
from pathlib import Path

from pictures import draw_shapes

SEEDS = (0, 1, 2)
EPOCHS = 10  # a short run, so that six of them take minutes; a real comparison trains to the end
OPTIONS = sys.argv[1:]  # further options of `eulerlora train`, such as --set training.epochs=5
SAME = ("backbone.weights=embedded", "adapters.adapters=1", f"training.epochs={EPOCHS}")
METHODS = {"eulerlora": "adapters.min_rank=10", "lora": "adapters.min_rank=20"}  # of rank 20
draw_shapes(Path("shapes"), per_class=60)  # at least 20 test images, which intervals need

# %% [markdown]
# **Same conditions.** Both runs of a seed see the same split, images, order and views; only one
# setting differs. With `min_rank` equal to the rank nothing is drawn: one adapter is then LoRA,
# several are a LoRA-Ensemble. EulerLoRA answers in mode stoch, with four passes for each image;
# LoRA answers in mode det, with one. Decide what to compare, and on how many seeds, before you
# look at results. Started again with the same options, the script continues where it was stopped;
# other options need a new folder.

# %%
for seed in SEEDS:
    for name, setting in METHODS.items():
        out = Path(f"runs/{name}-{seed}")
        arguments = [
            "train", "imagefolder", "--data", "shapes", "--out", out, "--seed", str(seed),
            *(word for one in (*SAME, setting) for word in ("--set", one)), "--resume", *OPTIONS,
        ]  # fmt: skip
        if not (out / "report" / "report.json").exists():
            subprocess.run([sys.executable, "-m", "eulerlora_contract", *arguments], check=True)

# %% [markdown]
# **One table.** `compare` takes the runs of a method together, and compares the methods on the same
# test images: mean and standard deviation over seeds, and the differences to LoRA with intervals
# for new images and seeds. `comparison/` has the tables, also for LaTeX, and charts.

# %%
runs = [f"runs/{name}-{seed}" for name in METHODS for seed in SEEDS]
words = ["compare", *runs, "--reference", "runs/lora-0", "--out", "comparison"]
subprocess.run([sys.executable, "-m", "eulerlora_contract", *words], check=True)

# %% [markdown]
# "No difference shown" does not mean equal: `detectable` is what such runs would have shown.
# [Which one should I use?](../docs/choose.md) has what longer comparisons gave.
