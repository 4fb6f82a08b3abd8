"""Ask the service.

Send pictures to a running service and read its answers. Start the service in another terminal with
`make serve`; it listens on port 8000 with the embedded model.
"""

# %% [markdown]
# The client installs neither PyTorch nor FastAPI. One picture, one answer:

# %%
import os
from pathlib import Path

import eulerlora_client
from eulerlora_client import Problem, TriageClient

ROOT = Path(eulerlora_client.__file__).parents[1]
URL = os.environ.get("EULERLORA_URL", "http://127.0.0.1:8000")
lesion = ROOT / "docs" / "images" / "example-lesion.jpg"

client = TriageClient(URL)
answer = client.predict(lesion, mode="stoch", samples=4)
print(answer.label, f"{answer.msp:.3f}")
for name, probability in answer.probabilities.items():
    print(f"  {name:6} {probability:.3f}")

# %% [markdown]
# Mode `stoch` draws four samples of each of the four adapters: 16 trajectories, whose mean is the
# answer. The entropy says how uncertain the answer is, and the mutual information how far the
# trajectories disagree. Both are in nats.

# %%
print(f"{answer.trajectories} trajectories")
print(f"entropy {answer.entropy:.3f}, mutual information {answer.mutual_information:.4f}")

# %% [markdown]
# The same question gets the same answer, alone or beside other requests: the seed is derived from
# the picture. Another seed gives other draws.

# %%
again = client.predict(lesion, mode="stoch", samples=4)
other = client.predict(lesion, mode="stoch", samples=4, seed=1)
assert again.probabilities == answer.probabilities
print("another seed changes the entropy by", f"{abs(other.entropy - answer.entropy):.4f}")

# %% [markdown]
# Many pictures: one request for each, answers in order, and a problem in the place of a file that
# is no picture.

# %%
page = ROOT / "clinic" / "eulerlora_clinic" / "service" / "page"
files = [lesion, page / "example-house.jpg", ROOT / "README.md"]
for file, result in zip(files, client.triage_many(files), strict=True):
    if isinstance(result, Problem):
        print(f"{file.name}: no result, {result.code}")
    else:
        print(f"{file.name}: {result.title}, unfamiliar: {result.prediction.unfamiliar}")
client.close()

# %% [markdown]
# It prints:
#
#     nv 0.986
#       bkl    0.005
#       nv     0.986
#       df     0.000
#       mel    0.007
#       vasc   0.000
#       bcc    0.000
#       akiec  0.000
#     16 trajectories
#     entropy 0.085, mutual information 0.0043
#     another seed changes the entropy by 0.0067
#     example-lesion.jpg: Routine, unfamiliar: False
#     example-house.jpg: Unfamiliar, unfamiliar: True
#     README.md: no result, unsupported_media
#
# The lesion is `Routine`: the policy refers a lesion from a probability of 0.038 of `mel`, `bcc`
# and `akiec` together; from 0.24 on it is `Urgent`. The house is `unfamiliar`: its features are far
# from those of the training pictures, and what the probabilities are worth for it is unknown.
#
# Next: [is it sure?](is_it_sure.py) explains the numbers, [clients and
# protocols](../docs/how-to/clients.md) every option of the client.
