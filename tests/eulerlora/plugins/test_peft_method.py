"""The PEFT method, against PEFT's LoRA and the law of the coefficients."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import HfApi
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from eulerlora.peft import EulerLoraConfig, draw_coefficients, sampling
from eulerlora_contract.errors import SettingsError
from tests.fake_hub import NAME, fake_hub

SHAPE = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
}  # fmt: skip
VIT = transformers.ViTConfig(**SHAPE, image_size=16, patch_size=8, num_labels=3)
LLAMA = transformers.LlamaConfig(**SHAPE, vocab_size=20, pad_token_id=0)
IMAGES = torch.rand(3, 3, 16, 16, generator=Generator().manual_seed(0))


def randomised(model: Any, name: str = "lora_B") -> Any:
    """Random parameters where a name has `name`, in evaluation mode."""
    generator = Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if name in parameter_name:
                parameter.normal_(std=0.3, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def vit() -> transformers.ViTForImageClassification:
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(VIT).eval()


@pytest.fixture
def model(vit) -> PeftModel:
    """A ViT with a random adapter of rank 4 and a head of its own."""
    config = EulerLoraConfig(r=4, min_rank=2, modules_to_save=["classifier"])
    return randomised(get_peft_model(deepcopy(vit), config))


@torch.no_grad()
def logits_of(model: nn.Module, images: Tensor = IMAGES) -> Tensor:
    return model(pixel_values=images).logits


@torch.no_grad()
def sampled(model: nn.Module, images: Tensor = IMAGES, **options: Any) -> Tensor:
    """Logits (n, samples, classes)."""
    with sampling(model, **options):
        return model(pixel_values=images).logits.unflatten(0, (len(images), -1))


def test_without_sampling_it_is_lora_exactly(model: PeftModel, vit) -> None:
    targets = model.peft_config["default"].target_modules
    plain = get_peft_model(
        deepcopy(vit),
        LoraConfig(r=4, lora_alpha=4, target_modules=targets, modules_to_save=["classifier"]),
    ).eval()
    set_peft_model_state_dict(plain, get_peft_model_state_dict(model))
    expected = logits_of(plain)
    assert torch.equal(logits_of(model), expected)
    assert not torch.equal(sampled(model)[:, 0], expected)
    assert torch.equal(logits_of(model), expected)
    plain.merge_adapter()
    model.merge_adapter()
    assert torch.equal(logits_of(model), logits_of(plain))
    with pytest.raises(SettingsError), sampling(model):
        pass


def test_a_least_rank_of_all_directions_leaves_lora(vit) -> None:
    model = randomised(get_peft_model(deepcopy(vit), EulerLoraConfig(r=4, min_rank=4)))
    expected = logits_of(model)
    torch.testing.assert_close(sampled(model, samples=2)[:, 1], expected)
    assert torch.equal(logits_of(model.train()), expected)


def test_half_of_the_directions_are_active_at_least_unless_stated() -> None:
    config = EulerLoraConfig(r=5, target_modules=["0"], roles={"0": "input"})
    model = get_peft_model(nn.Sequential(nn.Linear(4, 6)), config)
    (drawn,) = draw_coefficients(model, samples=200, seed=0).values()
    assert set((drawn != 0).sum(dim=1).tolist()) == {3, 4, 5}


@pytest.mark.parametrize("role", ["input", "output"])
def test_the_mean_of_a_layer_is_the_output_of_lora(role: str) -> None:
    """Within 4.5 standard errors of 20,000 draws, in each of 6 outputs."""
    config = EulerLoraConfig(r=5, target_modules=["0"], roles={"0": role}, steps=3)
    model = randomised(get_peft_model(nn.Sequential(nn.Linear(4, 6)), config))
    inputs = torch.rand(1, 4, generator=Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(inputs)
        with sampling(model, samples=20_000, seed=3):
            outputs = model(inputs).double()
    errors = outputs.std(dim=0) / len(outputs) ** 0.5
    assert (errors > 0).all()
    assert ((outputs.mean(dim=0) - expected).abs() < 4.5 * errors).all()


def test_an_example_does_not_depend_on_the_rest_of_the_batch(model: PeftModel) -> None:
    batch = sampled(model, samples=4, seed=7)
    assert batch.unique(dim=1).shape[1] == 4
    torch.testing.assert_close(sampled(model, IMAGES[1:2], samples=4, seed=7), batch[1:2])
    own = sampled(model, samples=4, seed=[3, 7, 9])
    torch.testing.assert_close(own[1], batch[1])
    assert not torch.allclose(own[0], batch[0])


def test_an_output_is_the_formula_with_the_given_coefficients() -> None:
    """Also for a layer whose inputs are the parts of the rows, one after the other."""
    config = EulerLoraConfig(r=3, lora_alpha=6, target_modules=["0"], roles={"0": "output"})
    layer = nn.Linear(4, 2)
    model = randomised(get_peft_model(nn.Sequential(layer, nn.Identity()), config))
    drawn = draw_coefficients(model, samples=2, seed=1)
    (coefficients,) = drawn.values()
    down, up = (
        parameter for name, parameter in model.named_parameters() if "lora_" in name
    )  # (3, 4), (2, 3)
    inputs = torch.rand(2, 5, 4, generator=Generator().manual_seed(2))
    weighted = F.linear(inputs, down)[:, None] * coefficients[None, :, None]
    expected = layer(inputs)[:, None] + 2 * F.linear(weighted, up)  # (2, samples, 5, 2)
    with torch.no_grad(), sampling(model, samples=2, coefficients=drawn):
        torch.testing.assert_close(model(inputs), expected.flatten(0, 1))

    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model.base_model.model

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])

    flattened = Flattened()
    drawn = draw_coefficients(flattened, samples=2, seed=1)
    with torch.no_grad(), sampling(flattened, samples=2, coefficients=drawn):
        torch.testing.assert_close(flattened(inputs), expected.flatten(0, 1))


def test_training_draws_anew_in_every_pass(model: PeftModel) -> None:
    model.train()
    torch.manual_seed(0)
    first, second = logits_of(model), logits_of(model)
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(logits_of(model), first)
    fresh = [sampled(model, samples=2, seed=None) for _ in range(2)]
    assert not torch.equal(fresh[0], fresh[1])


def of_training(model: PeftModel) -> Tensor:
    """A pass in training mode, whose draws are those of the layers."""
    return model(pixel_values=IMAGES).logits.square().mean()


def of_seed(model: PeftModel, samples: int = 2, seed: int | None = 3) -> Tensor:
    """A sampled pass, whose backward pass follows after the block."""
    with sampling(model, samples, seed):
        return model(pixel_values=IMAGES[:samples]).logits.square().mean()


def of_new_draws(model: PeftModel) -> Tensor:
    return of_seed(model, seed=None)


def of_several_passes(model: PeftModel) -> Tensor:
    """Sampled passes and one of training, with different numbers of rows, in one graph."""
    return of_training(model) + 2 * of_seed(model) + 3 * of_seed(model, 3, 4) + of_training(model)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("loss", [of_training, of_seed, of_new_draws, of_several_passes])
def test_activation_checkpointing_leaves_the_gradients(
    vit, loss: Callable[[PeftModel], Tensor], reentrant: bool
) -> None:
    """The pass that is computed again in the backward pass has the same coefficients."""
    model = randomised(get_peft_model(deepcopy(vit), EulerLoraConfig(r=4))).train()
    model.enable_input_require_grads()
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.zero_grad()
        torch.manual_seed(5)
        loss(model).backward()
        gradients.append([p.grad for n, p in model.named_parameters() if "lora_" in n])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_around_the_model_leaves_the_gradients(
    model: PeftModel, reentrant: bool, training: bool
) -> None:
    """Several blocks and passes in one graph, whose second runs contain the loss."""
    model.train(training)
    images = IMAGES.clone().requires_grad_()

    def loss(images: Tensor) -> Tensor:
        return model(pixel_values=images).logits.square().mean()

    gradients = []
    for checkpointing in (False, True):
        model.zero_grad()
        torch.manual_seed(5)
        total = loss(images)
        for seed in (3, None, 4):
            with sampling(model, 2, seed):
                for batch in (images, images[:2]):
                    if checkpointing:
                        part = checkpoint(loss, batch, use_reentrant=reentrant)
                    else:
                        part = loss(batch)
                    total = total + part
        with sampling(model, 2, 3):
            total.backward()
        gradients.append([p.grad for n, p in model.named_parameters() if "lora_" in n])
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_that_cannot_repeat_the_draws_is_refused(
    model: PeftModel, reentrant: bool
) -> None:
    images = IMAGES.clone().requires_grad_()
    options = {"use_reentrant": reentrant}

    def logits(images: Tensor) -> Tensor:
        return model(pixel_values=images).logits

    with sampling(model, 2):
        after = checkpoint(logits, images, **options)
        anew = checkpoint(logits, images, **options, preserve_rng_state=False)
        with pytest.raises(SettingsError, match="preserve_rng_state"):
            anew.sum().backward()
    with pytest.raises(SettingsError, match="block of sampling"):
        after.sum().backward()
    anew = checkpoint(logits, images, **options, preserve_rng_state=False)
    model.train()
    anew = checkpoint(logits, images, **options, preserve_rng_state=False)
    with pytest.raises(SettingsError, match="preserve_rng_state"):
        anew.sum().backward()


def test_each_example_has_the_draws_of_its_adapter(model: PeftModel) -> None:
    model.add_adapter("other", EulerLoraConfig(r=3, modules_to_save=["classifier"]))
    randomised(model)
    names = ["other", "default", "__base__"]
    for seed in (7, [7, 8, 9]):
        with torch.no_grad(), sampling(model, 2, seed):
            mixed = model(pixel_values=IMAGES, adapter_names=names).logits.unflatten(0, (3, 2))
        for index, name in enumerate(names[:2]):
            model.set_adapter(name)
            torch.testing.assert_close(mixed[index], sampled(model, samples=2, seed=seed)[index])
        with model.disable_adapter():
            torch.testing.assert_close(mixed[2], logits_of(model)[2].expand(2, -1))
    given = draw_coefficients(model, 2)
    with (
        sampling(model, 2, coefficients=given),
        pytest.raises(SettingsError, match="adapter_names"),
    ):
        model(pixel_values=IMAGES, adapter_names=names)


def test_trainer_predicts_all_samples_of_all_examples(model: PeftModel, tmp_path: Path) -> None:
    """Its last batch of 2 is smaller than the others."""
    images = torch.rand(6, 3, 16, 16, generator=Generator().manual_seed(0))
    data = [{"pixel_values": image, "labels": 0} for image in images]
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=4, report_to="none", use_cpu=True
    )
    trainer = transformers.Trainer(model=model, args=arguments)
    with sampling(model, samples=4), pytest.raises(SettingsError, match="by_example"):
        trainer.predict(data)
    with sampling(model, samples=4, by_example=True):
        predicted = trainer.predict(data).predictions
    assert predicted.shape == (6, 4, 3)
    torch.testing.assert_close(torch.from_numpy(predicted), sampled(model, images, samples=4))


def test_a_saved_adapter_gives_the_same_samples(model: PeftModel, vit, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(deepcopy(vit), tmp_path).eval()
    assert torch.equal(logits_of(loaded), logits_of(model))
    assert torch.equal(sampled(loaded, seed=5), sampled(model, seed=5))
    card = (tmp_path / "README.md").read_text()
    assert all(f"`{name}`" in card for name in ("r", "min_rank", "steps", "scale", "init_gain"))
    half = deepcopy(vit).bfloat16()
    PeftModel.from_pretrained(half, tmp_path)  # the base model, rounded


def test_an_adapter_goes_to_the_hub_and_back(
    model: PeftModel, vit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = tmp_path / "pushed"
    pushed.mkdir()
    model.save_pretrained(tmp_path / "saved")
    with fake_hub(pushed, monkeypatch, tmp_path / "cache"):
        HfApi().create_repo(NAME)
        HfApi().upload_folder(repo_id=NAME, folder_path=tmp_path / "saved")
        card = (pushed / "README.md").read_text()
        assert "## EulerLoRA" in card
        randomised(model)
        model.push_to_hub(NAME)  # it keeps a card that is there
        assert (pushed / "README.md").read_text() == card
        loaded = PeftModel.from_pretrained(deepcopy(vit), NAME).eval()
    assert isinstance(loaded.peft_config["default"], EulerLoraConfig)
    assert torch.equal(sampled(loaded), sampled(model))


@torch.no_grad()
def test_a_model_is_pickled_after_a_block(model: PeftModel) -> None:
    sampled(model)
    copy = pickle.loads(pickle.dumps(model))
    assert torch.equal(logits_of(copy), logits_of(model))


def test_adapters_are_sampled_one_by_one_or_together(model: PeftModel) -> None:
    model.add_adapter("other", EulerLoraConfig(r=6, min_rank=2))
    randomised(model)
    first = sampled(model, seed=5)
    model.set_adapter("other")
    assert {len(c[0]) for c in draw_coefficients(model, 1).values()} == {6}
    assert not torch.allclose(sampled(model, seed=5), first)
    model.base_model.set_adapter(["default", "other"])
    assert len(draw_coefficients(model, 1)) == 2 * 8
    model.set_adapter("default")
    assert torch.equal(sampled(model, seed=5), first)
    with model.disable_adapter():
        assert not torch.equal(logits_of(model), first[:, 0])


@torch.no_grad()
def test_an_adapter_that_becomes_active_in_the_block_is_sampled(model: PeftModel) -> None:
    model.add_adapter("other", EulerLoraConfig(r=6, min_rank=2))
    randomised(model).set_adapter("other")
    expected = sampled(model, seed=5)
    model.set_adapter("default")
    given = draw_coefficients(model, samples=4)
    with sampling(model, seed=5):
        model.set_adapter("other")
        assert torch.equal(model(pixel_values=IMAGES).logits, expected.flatten(0, 1))
    model.set_adapter("default")
    with sampling(model, samples=1, seed=5):  # also without a call of the model that is sampled
        model.set_adapter("other")
        actual = model.base_model.model(pixel_values=IMAGES).logits
    torch.testing.assert_close(actual, sampled(model, samples=1, seed=5)[:, 0])
    model.set_adapter("default")
    with sampling(model, coefficients=given), pytest.raises(SettingsError):
        model.set_adapter("other")
        model(pixel_values=IMAGES)


def test_a_language_model_generates_from_one_sample() -> None:
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(LLAMA)
    model = randomised(get_peft_model(base, EulerLoraConfig(r=4, task_type="CAUSAL_LM")))
    tokens = torch.tensor([[3, 5, 7], [2, 4, 6]])
    options = {"input_ids": tokens, "max_new_tokens": 4, "do_sample": False}
    with sampling(model, samples=1, seed=[1, 2]):
        both = model.generate(**options, num_beams=1)
    with sampling(model, samples=1, seed=2):
        alone = model.generate(**options | {"input_ids": tokens[1:]})
    assert torch.equal(both[1:], alone)
    with pytest.raises(SettingsError), sampling(model, samples=2):
        model.generate(**options)


Build = Callable[[], nn.Module]
MODELS: dict[str, tuple[Build, int, int]] = {
    "vit": (lambda: transformers.ViTModel(VIT), 6, 2),
    "llama": (lambda: transformers.LlamaModel(LLAMA), 6, 2),
    "dinov2": (lambda: transformers.Dinov2Model(transformers.Dinov2Config(**SHAPE)), 6, 2),
    "dinov3": (lambda: transformers.DINOv3ViTModel(transformers.DINOv3ViTConfig(**SHAPE)), 6, 2),
    "clip": (
        lambda: transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**SHAPE)), 6, 2
    ),
    "bert": (lambda: transformers.BertModel(transformers.BertConfig(**SHAPE, vocab_size=9)), 6, 2),
    "distilbert": (
        lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=9, vocab_size=9)
        ),
        6, 2,
    ),
    "gpt2": (
        lambda: transformers.GPT2Model(
            transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=9)
        ),
        2, 2,
    ),
    "t5": (
        lambda: transformers.T5EncoderModel(
            transformers.T5Config(
                d_model=16, d_kv=8, d_ff=9, num_layers=2, num_heads=2, vocab_size=9
            )
        ),
        6, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(MODELS))
def test_an_architecture_has_default_targets_and_roles(kind: str) -> None:
    build, inputs, outputs = MODELS[kind]
    model = get_peft_model(build(), EulerLoraConfig(r=2))
    roles = [m.role for m in model.modules() if hasattr(m, "role") and hasattr(m, "law")]
    assert (roles.count("input"), roles.count("output")) == (inputs, outputs)


class Quantised(nn.Linear):
    """A linear layer with weights of 8 bits."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)


def network() -> nn.ModuleDict:
    parts = {"q_proj": nn.Linear(4, 4), "unknown": nn.Linear(4, 4), "conv": nn.Conv2d(3, 3, 1)}
    return nn.ModuleDict(parts | {"o_proj": Quantised()})


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"target_modules": ["nothing"]}, "target_modules.*q_proj, unknown"),
        ({"target_modules": ["q_proj", "query", "value"]}, "unknown, o_proj.*, query, value match"),
        ({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, "q_proj match none"),
        ({}, "target_modules.*q_proj, unknown"),
        ({"target_modules": ["q_proj", "unknown"]}, "unknown"),
        ({"target_modules": ["q_proj", "conv"]}, "conv"),
        ({"target_modules": ["q_proj", "o_proj"]}, "o_proj"),
        ({"target_modules": ["q_proj"], "r": 4, "min_rank": 5}, "min_rank"),
        ({"target_modules": ["q_proj"], "min_rank": 4, "rank_pattern": {"q_proj": 3}}, "min_rank"),
        ({"target_modules": ["q_proj"], "min_rank": 0}, "min_rank"),
        ({"target_modules": ["q_proj"], "steps": 0}, "steps"),
        ({"target_modules": ["q_proj"], "scale": -1.0}, "scale"),
        ({"target_modules": ["q_proj"], "init_gain": float("nan")}, "init_gain"),
        ({"target_modules": ["q_proj"], "roles": {"q_proj": "query"}}, "roles"),
        ({"target_modules": ["q_proj"], "use_dora": True}, "use_dora"),
        ({"target_modules": ["q_proj"], "init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"target_parameters": ["q_proj.weight"]}, "target_parameters"),
        ({"target_modules": ["q_proj"], "base": {"targets": "other", "weights": []}}, "base"),
    ],
    ids=str,
)
def test_bad_input_is_refused_before_the_model_changes(options: dict[str, Any], key: str) -> None:
    model = network()
    with pytest.raises(SettingsError, match=key):
        get_peft_model(model, EulerLoraConfig(**options))
    assert [type(module) for module in model.children()] == [
        type(module) for module in network().children()
    ]


def test_an_adapter_of_another_base_is_refused(model: PeftModel, vit, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    other = transformers.ViTForImageClassification(VIT)
    names = [name for name, _ in other.named_modules()]
    with pytest.raises(SettingsError, match="base"):
        PeftModel.from_pretrained(other, tmp_path)
    assert [name for name, _ in other.named_modules()] == names


@pytest.mark.parametrize(
    ("options", "key"),
    [({"samples": 0}, "samples"), ({"coefficients": {}}, "coefficients")],
    ids=str,
)
def test_sampling_refuses_bad_options(model: PeftModel, options: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError, match=key), sampling(model, **options):
        pass


def test_sampling_needs_an_adapter(vit) -> None:
    with pytest.raises(SettingsError), sampling(vit):
        pass
