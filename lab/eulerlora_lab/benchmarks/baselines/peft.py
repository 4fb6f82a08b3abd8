"""Baseline: Hugging Face PEFT on the ViT of transformers, with the same weights.

PEFT has no coefficients, so the comparison is deterministic: one row for each image and adapter.
Nothing is downloaded.
"""

from collections.abc import Sequence

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from transformers import ViTConfig, ViTModel

from eulerlora.exchange.libraries import vit_state
from eulerlora.nn.method import AttentionAdapters
from eulerlora.nn.network import AdaptedVisionTransformer

_PROJECTION_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


class PeftVisionTransformer:
    """The adapters of a network as PEFT adapters, with its heads."""

    def __init__(self, network: AdaptedVisionTransformer) -> None:
        device = network.heads.weight.device
        settings = network.settings
        self.names = [f"adapter_{index}" for index in range(settings.adapters)]
        config = LoraConfig(
            r=settings.rank, lora_alpha=settings.rank, target_modules=list(_PROJECTION_NAMES)
        )
        model = get_peft_model(_plain_vit(network), config, adapter_name=self.names[0])
        assert isinstance(model, PeftModel)
        for name in self.names[1:]:
            model.add_adapter(name, config)
        self.model = model.to(device).eval()
        self.heads = network.heads
        with torch.no_grad():
            _copy_adapters(network, self.model.get_base_model(), self.names)

    @torch.inference_mode()
    def adapter_by_adapter(self, images: Tensor) -> Tensor:
        """Logits from one forward pass for each adapter, after `set_adapter`.

        Shape (n * adapters, classes), ordered by image.
        """
        features = []
        for name in self.names:
            self.model.set_adapter(name)
            features.append(self.model(pixel_values=images).last_hidden_state[:, 0])
        return self._heads(torch.stack(features, dim=1))

    @torch.inference_mode()
    def mixed_batch(self, images: Tensor) -> Tensor:
        """The same logits from one forward pass with `adapter_names` by row."""
        count = len(self.names)
        rows = images.repeat_interleave(count, dim=0)
        output = self.model(pixel_values=rows, adapter_names=self.names * len(images))
        return self._heads(output.last_hidden_state[:, 0].unflatten(0, (-1, count)))

    def _heads(self, features: Tensor) -> Tensor:
        """Applies the heads. features: (n, adapters, width)."""
        heads = zip(features.unbind(1), self.heads.weight, self.heads.bias, strict=True)
        logits = [nn.functional.linear(inputs, weight, bias) for inputs, weight, bias in heads]
        return torch.stack(logits, dim=1).flatten(0, 1)


def _plain_vit(network: AdaptedVisionTransformer) -> ViTModel:
    """The ViT of transformers with the weights of a network's backbone."""
    shape = network.backbone.settings
    config = ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.mlp_width,
        image_size=shape.image_size,
        patch_size=shape.patch_size,
        layer_norm_eps=shape.norm_epsilon,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    state = vit_state(network.backbone.state_dict())
    return ViTModel.from_pretrained(None, config=config, state_dict=state, add_pooling_layer=False)


def _copy_adapters(
    network: AdaptedVisionTransformer, peft: nn.Module, names: Sequence[str]
) -> None:
    for block, attention in enumerate(network.blocks):
        assert isinstance(attention, AttentionAdapters)
        for index, projection in enumerate(_PROJECTION_NAMES):
            linear = peft.get_submodule(f"layers.{block}.attention.{projection}")
            assert isinstance(linear, PeftLinear)
            for adapter, name in enumerate(names):
                down, up = linear.lora_A[name].weight, linear.lora_B[name].weight
                assert isinstance(down, Tensor)
                assert isinstance(up, Tensor)
                down.copy_(attention.down[index, adapter])
                up.copy_(attention.up[index, adapter].T)
