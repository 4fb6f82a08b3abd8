"""Pictures it does not know.

Find out which pictures the model has no basis to judge: another subject, another camera, or no
lesion at all.
"""

# %%
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from eulerlora import EulerLoRA

ROOT = Path(__file__).parents[1]
lesion = Image.open(ROOT / "docs" / "images" / "example-lesion.jpg")
noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
pictures = {
    "lesion": lesion,
    "house": Image.open(
        ROOT / "clinic" / "eulerlora_clinic" / "service" / "page" / "example-house.jpg"
    ),
    "noise": Image.fromarray(noise),
    "one colour": Image.new("RGB", (400, 300), (200, 150, 160)),
    "lesion in the dark": lesion.point(lambda level: level * 0.35),
    "negative of the lesion": ImageOps.invert(lesion),
}
model = EulerLoRA.default()
answer = model.predict(pictures.values(), mode="stoch", samples=4)
scores = answer.ood_scores
print("picture                  MSP    ood    distance  unfamiliar")
for index, name in enumerate(pictures):
    print(
        f"{name:22}  {answer.msp[index]:.3f}  {answer.ood[index].item()!s:5}  "
        f"{scores['feature_distance'].value[index]:8.1f}  {answer.unfamiliar[index]}"
    )

# %% [markdown]
# It prints:
#
#     picture                  MSP    ood    distance  unfamiliar
#     lesion                  0.986  False      14.6  False
#     house                   0.709  False      79.7  True
#     noise                   0.730  False      76.6  True
#     one colour              0.941  False      83.2  True
#     lesion in the dark      0.990  False      50.1  True
#     negative of the lesion  0.908  False     104.5  True
#
# - **`ood`**: the maximum probability is below a threshold that at least 95% of the calibration
#   lesions exceed. It finds pictures between the classes; a model can be certain about noise.
# - **`unfamiliar`**: the features are further from those of the training pictures than at least
#   95% of the calibration lesions. It finds other subjects, and part of other cameras. Do not use
#   the probabilities of such a picture; in triage a person looks at it.
#
# A threshold belongs to one mode and number of samples. For a number that was not calibrated both
# flags are `None`, and a warning says why:

# %%
other = model.predict([lesion], mode="stoch", samples=3)
assert other.ood is None and other.unfamiliar is None
print(*(warning.message for warning in other.warnings), sep="\n")

# %% [markdown]
# `eulerlora calibrate CHECKPOINT --data DIR --out NEW` writes a checkpoint with new thresholds, and
# `eulerlora evaluate NEW --data DIR --ood DIR/other` measures them on other pictures
# ([evaluate](../docs/how-to/evaluate.md)). Next: [a clinic's calibration and monitor](clinic.py).
