"""Fine-tune with PEFT and Trainer.

EulerLoRA as a method of PEFT, trained by transformers' `Trainer`; it needs
`pip install ./eulerlora_contract '.[peft]' accelerate` in a checkout.
"""

# %% [markdown]
# A small ViT with random weights and pictures that stand for yours. `EulerLoraConfig` replaces
# `LoraConfig`; the head is trained whole.

# %%
import os

import torch
from peft import get_peft_model
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from eulerlora import summarise
from eulerlora.peft import EulerLoraConfig, sampling

torch.manual_seed(0)
labels = torch.arange(96) % 2
images = torch.rand(96, 3, 32, 32) / 2 + 0.3 * labels[:, None, None, None]
pictures = [
    {"pixel_values": image, "labels": label} for image, label in zip(images, labels, strict=True)
]
shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
base = ViTForImageClassification(
    ViTConfig(**shape, intermediate_size=64, image_size=32, patch_size=8, num_labels=2)
)
model = get_peft_model(base, EulerLoraConfig(r=8, modules_to_save=["classifier"]))
model.print_trainable_parameters()

# %% [markdown]
# Each step draws new coefficients. The saved folder is an ordinary PEFT folder, whose model card
# states the settings of the method.

# %%
out = os.environ.get("OUT", "peft-run")
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        out,
        num_train_epochs=4,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        logging_steps=6,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=pictures,
)
trainer.train()
model.save_pretrained(out)

# %% [markdown]
# In evaluation mode the model is plain LoRA; in `sampling`, each image has four rows.

# %%
model.eval()
with torch.no_grad(), sampling(model, samples=4, seed=0):
    logits = model(pixel_values=images[:4]).logits.unflatten(0, (4, 4))
summary = summarise(logits.softmax(dim=-1))
print("probability of the label:", summary.probabilities[range(4), labels[:4]])
print("mutual information:", summary.mutual_information)
