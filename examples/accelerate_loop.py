"""Train EulerLoRA with accelerate.

The loop of `training_loop.py` on as many devices as `accelerate launch` starts; it needs
`pip install accelerate`.
"""

# %%
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import VisionTransformer

from eulerlora import adapt, trajectory_loss

torch.manual_seed(0)
labels = torch.arange(64) % 2
images = torch.rand(64, 3, 32, 32) / 2 + 0.3 * labels[:, None, None, None]
vit = VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64)
model = adapt(vit, rank=8, classes=["dark", "bright"])

# %% [markdown]
# Only what has `requires_grad` goes to the optimiser; accelerate averages its gradients.

# %%
accelerator = Accelerator()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
batches = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
model, optimiser, batches = accelerator.prepare(model, torch.optim.AdamW(trained, lr=3e-3), batches)
for epoch in range(3):
    for batch, targets in batches:
        loss = trajectory_loss(model(batch, mode="stoch", samples=4), targets)
        optimiser.zero_grad()
        accelerator.backward(loss)
        optimiser.step()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}")
