"""In the Bayesian Adaptation Gym.

The [Bayesian Adaptation Gym](https://github.com/SRI-CSL/BayesAdapt) (BAG) trains and evaluates
Bayesian adapters of language models. One of its methods is a class that wraps the LoRA layers of
PEFT; this is that class for EulerLoRA. It runs in BAG's environment, not by itself.

Checked on 2026-11-27 with BAG's commit 3843000, PEFT 0.21.2, transformers 5.23: BAG's own trainer
trained a Qwen2 of two layers with random weights for 30 steps on a CPU, sampled it and saved it.
Its data sets, its models, its timing, which needs CUDA, and quantised models were not run.
"""

# %% [markdown]
# `eulerlora.peft` gives each layer its role and draws coefficients in training. BAG calls the
# model once for each sample in evaluation too, and expects another draw in each call.

# %%
from typing import Any

from bayesadapt.lorawrappers import LoraWrapper
from peft.tuners.lora import LoraLayer
from torch import Tensor

from eulerlora.plugins.peft_method import Directions


class EulerLoraWrapper(LoraWrapper):
    """A layer of EulerLoRA that draws its coefficients in each pass, in evaluation too.

    A draw is for the whole batch. Raises TypeError for a layer of another method of PEFT.
    """

    def __init__(self, lora_layer: LoraLayer, *args: Any, **kwargs: Any) -> None:
        super().__init__(lora_layer, *args, **kwargs)
        if not all(isinstance(matrix, Directions) for matrix in self.lora_A.values()):
            raise TypeError("lora.config._target_: expected eulerlora.peft.EulerLoraConfig")

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for name in self.active_adapters:
            if name in self.lora_A:
                self.lora_A[name].train()  # as BAG's MC dropout does with its dropout
        return super().forward(x, *args, **kwargs)


# %% [markdown]
# **Install it.** In BAG's environment, which then has PEFT 0.21 and transformers 5.18 or newer
# instead of the versions that BAG locks (EULERLORA is a checkout of this repository):
#
#     pip install EULERLORA/eulerlora_contract 'EULERLORA[peft]'
#     cp EULERLORA/examples/bayesian_adaptation_gym.py .
#
# and in BAG's `conf/lora/wrapper/eulerlora.yaml`:
#
#     defaults:
#       - default
#
#     _partial_: true
#     _target_: bayesian_adaptation_gym.EulerLoraWrapper
#     target_modules: [q_proj, k_proj, v_proj, o_proj]
#
# **Use it.** The config of PEFT is that of EulerLoRA; `+lora.config.scale` and its other settings
# may follow:
#
#     python train_and_evaluate.py +lora=default +lora/wrapper=eulerlora \
#         lora.config._target_=eulerlora.peft.EulerLoraConfig \
#         'lora.config.target_modules=[q_proj,k_proj,v_proj,o_proj]' \
#         samples.train.backbone=2 samples.test.backbone=10 \
#         hf_model=Qwen/Qwen3-8B dataset@train_dataset=winogrande_s collate_fn=instruct
#
# BAG's loss is then the paper's, the mean of the losses of the draws. BAG adapts `lm_head` by
# default, which has no role in the paper: `+lora.config.roles.lm_head=input` gives it one, which
# the last-layer samples of BAG need. BAG sets `lora_alpha` to twice the rank.
#
# Next: [what EulerLoRA and BAG have](../docs/compared-with.md#bayesian-adaptation-gym).
