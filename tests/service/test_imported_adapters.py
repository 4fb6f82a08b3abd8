"""A PEFT model with EulerLoRA as a served checkpoint: the same answers over HTTP."""

import io
from pathlib import Path

import torch
from peft import get_peft_model
from PIL import Image
from starlette.testclient import TestClient
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor
from transformers import ViTConfig, ViTForImageClassification

from eulerlora.exchange.peft_folders import import_peft
from eulerlora.model import EulerLoRA
from eulerlora.nn.rows import COEFFICIENTS
from eulerlora.peft import EulerLoraConfig, sampling
from eulerlora.settings import Draw
from tests.service.conftest import app_of

SAMPLES, SEED = 3, 11
TOLERANCE = 1e-5


def test_the_service_gives_the_answers_of_a_peft_model(tmp_path: Path) -> None:
    """In mode det, and in mode stoch with the masks of the service."""
    torch.manual_seed(0)
    shape = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8,
        intermediate_size=24, num_labels=3,
    )  # fmt: skip
    ViTForImageClassification(shape).save_pretrained(tmp_path / "vit")
    base = ViTForImageClassification.from_pretrained(tmp_path / "vit")
    model = get_peft_model(base, EulerLoraConfig(r=4, modules_to_save=["classifier"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path / "adapter")
    import_peft([tmp_path / "adapter"], tmp_path / "checkpoint")
    loaded = EulerLoRA.load(tmp_path / "checkpoint", device="cpu")

    image = Image.effect_noise((32, 32), 80).convert("RGB")
    content = io.BytesIO()
    image.save(content, "PNG")
    with TestClient(app_of(loaded)) as client:

        def probabilities(query: str) -> Tensor:
            answer = client.post(
                f"/predict?{query}",
                content=content.getvalue(),
                headers={"Content-Type": "image/png"},
            )
            assert answer.status_code == 200, answer.text
            return torch.tensor(list(answer.json()["probabilities"].values()))

        det = probabilities("mode=det")
        stoch = probabilities(f"mode=stoch&samples={SAMPLES}&seed={SEED}")

    pixels = pil_to_tensor(image)[None] / 255
    draw = Draw(mode="stoch", samples=SAMPLES, seed=SEED, sampler=loaded.config.sampler)
    drawn = loaded.network.draw_rows([draw]).blocks[COEFFICIENTS]  # (samples, blocks, 4, rank)
    given = {
        f"base_model.model.vit.layers.{block}.attention.{name}_proj.lora_A.default": drawn[
            :, block, index
        ]
        for block in range(2)
        for index, name in enumerate("qkvo")
    }
    with torch.no_grad():
        expected = model.eval()(pixel_values=pixels).logits.softmax(-1)[0]
        with sampling(model, samples=SAMPLES, coefficients=given):
            sampled = model(pixel_values=pixels).logits.softmax(-1).mean(0)
    torch.testing.assert_close(det, expected, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(stoch, sampled, rtol=0, atol=TOLERANCE)
    assert (stoch - det).abs().max() > 1e-3
