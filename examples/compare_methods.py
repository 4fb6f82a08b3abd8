"""Compare two methods fairly.

Train EulerLoRA and LoRA on the same pictures with the same seeds, and state their difference with
an interval instead of two numbers.
"""

# %%
import csv
import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
from pictures import draw_shapes
from scipy import stats

SEEDS = (0, 1, 2)
EPOCHS = 10  # a short run, so that six of them take minutes; a real comparison trains to the end
OPTIONS = sys.argv[1:]  # further options of `eulerlora train`, such as --set training.epochs=5
SAME = ("backbone.weights=embedded", "adapters.adapters=1", f"training.epochs={EPOCHS}")
METHODS = {"eulerlora": "adapters.min_rank=10", "lora": "adapters.min_rank=20"}  # of rank 20
draw_shapes(Path("shapes"))

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
# **One number for each run.** `predictions.csv.gz` of a report has a row for each test image. The
# negative log-likelihood (NLL) reads the probability of the true class, so that it notices more
# than accuracy.


# %%
def nll(name: str, seed: int, mode: str) -> float:
    """Returns the mean negative log-likelihood of a run on its test images, in nats."""
    path = f"runs/{name}-{seed}/report/predictions.csv.gz"
    with gzip.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["mode"], row["set"]) == (mode, "test")]
    return float(np.mean([-np.log(float(row[f"p_{row['label']}"])) for row in rows]))


# %% [markdown]
# **Paired differences.** Seeds differ more than methods, so compare within a seed. The interval
# is Student's t over the seeds.

# %%
differences = [nll("eulerlora", seed, "stoch") - nll("lora", seed, "det") for seed in SEEDS]
mean, error = np.mean(differences), stats.sem(differences)
half = stats.t.ppf(0.975, len(SEEDS) - 1) * error
print(f"NLL of EulerLoRA minus LoRA: {mean:+.3f} nats")
print(f"95% interval {mean - half:+.3f} to {mean + half:+.3f}, {len(SEEDS)} seeds")
if mean - half <= 0 <= mean + half:
    print("no difference shown")

# %% [markdown]
# "No difference shown" does not mean equal. The interval covers the seeds, not other test images:
# for that, also resample groups of images, as `eulerlora reproduce` does, and correct for every
# further comparison ([does the method help?](../docs/results/index.md)). [Which one should I
# use?](../docs/choose.md) has what such comparisons gave.
