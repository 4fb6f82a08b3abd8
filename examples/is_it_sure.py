"""Is it sure?

Read entropy, mutual information, maximum probability and prediction sets on three drawn lesions.
"""

# %%
from pathlib import Path

import eulerlora
from eulerlora import EulerLoRA

ROOT = Path(eulerlora.__file__).parents[1]
PICTURES = [
    ROOT / "clinic" / "eulerlora_clinic" / "service" / "page" / "example-even.jpg",
    ROOT / "docs" / "images" / "example-lesion.jpg",
    ROOT / "clinic" / "eulerlora_clinic" / "service" / "page" / "example-irregular.jpg",
]
model = EulerLoRA.default()
answer = model.predict(PICTURES, mode="stoch", samples=2)
print("picture                 label    MSP  entropy  expected  mutual")
for index, path in enumerate(PICTURES):
    print(
        f"{path.name:22}  {answer.labels[index]:5}  {answer.msp[index]:.3f}    "
        f"{answer.entropy[index]:.3f}     {answer.expected_entropy[index]:.3f}   "
        f"{answer.mutual_information[index]:.3f}"
    )

# %% [markdown]
# - **MSP**, the maximum softmax probability of the mean, is the simplest measure: look at it
#   first. On the test images of the embedded model no measure is shown to rank errors better.
# - **Entropy** counts all classes: it tells a choice between two classes from one among seven.
# - The entropy is the sum of two parts. The **expected entropy** is what each trajectory is
#   unsure of by itself; the **mutual information** is how far the trajectories disagree.
#
# ![The three pictures, the eight trajectories of each, entropy, mutual information, MSP and
# prediction set](../docs/images/is-it-sure.png)

# %%
assert (answer.entropy - answer.expected_entropy - answer.mutual_information).abs().max() < 1e-9
for row in answer.trajectories[2]:
    print(" ".join(f"{name} {p:.2f}" for name, p in zip(model.classes, row, strict=True)))

# %% [markdown]
# **A prediction set** is meant to contain the true class with the stated probability, class by
# class, for lesions like those of the calibration ([what was
# measured](../docs/results/default-model.md)). More than one class means that the model cannot tell
# them apart at this coverage; `df` is in every set, because the calibration had too few lesions of
# it.

# %%
sets = model.predict(PICTURES, coverage=0.9)
for path, labels in zip(PICTURES, sets.prediction_sets.labels, strict=True):
    print(path.name, *labels)

# %% [markdown]
# **How many samples?** With `samples="auto"` the model takes one sample per adapter, and two or
# four only if the label or a flag is close to its boundary; `samples` and `rows` say what it took.

# %%
auto = model.predict(PICTURES, mode="stoch", samples="auto")
for path, samples, rows in zip(PICTURES, auto.samples, auto.rows, strict=True):
    print(path.name, int(samples), "samples,", int(rows), "passes")

# %% [markdown]
# **As a picture**, if matplotlib is installed: a bar for the mean probability of a class, a point
# for each trajectory. `answer.to_frame()` is a table of pandas, `answer[2]` what the service
# answers.

# %%
answer.plot(2)

# %% [markdown]
# None of these numbers says that the picture is one the model can judge: a house gets a
# probability of a class too. Next: [pictures it does not know](unknown_pictures.py), and
# [uncertainty](../docs/explanation/uncertainty.md) with what was measured.
