"""Train EulerLoRA in your own loop.

Put adapters on a Vision Transformer of torchvision, timm or transformers, train them in plain
PyTorch, read the uncertainty, and save a checkpoint for `eulerlora serve`. timm and transformers
need `pip install timm transformers`; set LIBRARY to choose one.
"""

# %% [markdown]
# Small networks with random weights keep this fast. In your code, take pretrained ones, such
# as `torchvision.models.vit_b_16(weights="DEFAULT")`,
# `timm.create_model("vit_base_patch16_224", pretrained=True)` or
# `ViTModel.from_pretrained("google/vit-base-patch16-224-in21k")`.

# %%
import os
from statistics import mean

import torch
from torch.utils.data import DataLoader, TensorDataset

from eulerlora import Preprocessing, adapt, summarise, trajectory_loss

torch.manual_seed(0)
library = os.environ.get("LIBRARY", "torchvision")
if library == "torchvision":
    from torchvision.models import VisionTransformer

    vit = VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64)
elif library == "timm":
    from timm.models import VisionTransformer

    vit = VisionTransformer(img_size=32, patch_size=8, depth=2, num_heads=2, embed_dim=32)
else:
    from transformers import ViTConfig, ViTModel

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vit = ViTModel(ViTConfig(**shape, intermediate_size=64, image_size=32, patch_size=8))

# %% [markdown]
# The pictures stand for yours: noise with more red or more blue.

# %%
labels = torch.arange(128) % 2
images = torch.rand(128, 3, 32, 32) / 2
images[labels == 0, 0] += 0.3
images[labels == 1, 2] += 0.3
batches = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)

# %% [markdown]
# The service prepares pictures as the loop does, so it has to know how. These are resized and have
# values in [0, 1]. For pretrained weights, `preprocessing=` takes what their library has: an image
# processor of transformers, timm's `resolve_model_data_config(vit)`, or torchvision's
# `weights.transforms()`.

# %%
model = adapt(
    vit,
    rank=8,
    adapters=2,
    classes=["red", "blue"],
    preprocessing=Preprocessing(size=32),
)

# %% [markdown]
# The loop. Each image has 2 adapters x 4 samples = 8 trajectories, and each trajectory learns from
# its own loss.

# %%
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimiser = torch.optim.AdamW(trained, lr=3e-3)
for epoch in range(4):
    losses = []
    for batch, targets in batches:
        loss = trajectory_loss(model(batch, mode="stoch", samples=4), targets)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {mean(losses):.3f}")

# %% [markdown]
# The mean over trajectories, and its uncertainty in nats. `save` writes a checkpoint that
# `EulerLoRA.load` reads and `eulerlora serve` serves; `check` compares the tensors of the loop with
# those that the service makes of the same pictures.

# %%
model.eval()
with torch.no_grad():
    trajectories = model(images[:4], mode="stoch", samples=4).softmax(dim=-1)
summary = summarise(trajectories)
for index in range(4):
    print(
        f"{model.classes[summary.probabilities[index].argmax()]}: msp {summary.msp[index]:.3f}, "
        f"mutual information {summary.mutual_information[index]:.4f}"
    )
model.save(os.environ.get("CHECKPOINT", "checkpoint"), check=(images[:4], images[:4]))
