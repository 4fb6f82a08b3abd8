"""Refitted heads: what they read, what stays, and when they are better.

`site fit` writes them only if held-out pictures show that they help.
"""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional as F

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import load_checkpoint, read_known_answer, read_training_images
from eulerlora.nn.method import AdapterHeads
from eulerlora.nn.network import predict_images
from eulerlora.scores.trajectories import Trajectories
from eulerlora.settings import Draw
from eulerlora_clinic.fitting.heads import (
    HeadChange,
    HeadComparison,
    refit_heads,
    with_changed_heads,
)
from eulerlora_clinic.policy.policy import read_policy
from tests.checkpoint_files import ADAPTERS_FILE
from tests.conftest import CLASSES as NAMES
from tests.conftest import random_network
from tests.program import succeed
from tests.training.conftest import units_of, write_training_images

ADAPTERS, SAMPLES, CLASSES, WIDTH = 2, 3, 4, 6


def heads_of(seed: int) -> AdapterHeads:
    heads = AdapterHeads(WIDTH, CLASSES, ADAPTERS)
    heads.initialise(torch.Generator().manual_seed(seed))
    return heads


def outputs_of(heads: AdapterHeads, inputs: Tensor) -> Trajectories:
    """What a network with these heads gives, from (n, adapters, samples, width)."""
    adapter = torch.arange(ADAPTERS).repeat_interleave(SAMPLES).repeat(len(inputs))
    logits = heads(inputs.float().flatten(0, 2), adapter).detach().double()
    features = torch.cat([F.normalize(inputs, dim=-1), torch.ones_like(inputs)], dim=-1)
    views = torch.zeros(inputs.shape[:3], dtype=torch.int64)
    return Trajectories.of(logits.view(*inputs.shape[:3], CLASSES), features.float(), views)


def site(count: int, seed: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Inputs whose first elements are high for their label, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    noise = torch.randn(count, ADAPTERS, SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return noise + 2 * torch.eye(CLASSES, WIDTH)[labels][:, None, None], labels


@pytest.fixture(scope="module")
def change() -> HeadChange:
    """Of heads that were refitted to 120 images of the site."""
    inputs, labels = site(120, 0)
    heads = heads_of(0)
    fit = refit_heads([outputs_of(heads, inputs)], heads, labels, units_of(range(120)), 1.5)
    assert fit is not None
    return fit.change


def test_outputs_with_a_change_are_those_of_changed_heads(change: HeadChange) -> None:
    inputs, _ = site(5, 1)
    old, new = heads_of(0), heads_of(0)
    change.apply(new)
    changed = with_changed_heads(outputs_of(old, inputs), old, [(np.arange(5), change)])
    expected = outputs_of(new, inputs)
    assert torch.allclose(changed.log_probabilities, expected.log_probabilities, atol=1e-4)
    assert torch.allclose(changed.log_partition, expected.log_partition, atol=1e-4)


def test_a_class_without_pictures_keeps_its_head_and_the_others_their_mean(
    change: HeadChange,
) -> None:
    assert change.weight[3].abs().max() == change.bias[3] == 0
    assert torch.allclose(change.weight.sum(dim=0), torch.zeros(WIDTH).double(), atol=1e-3)
    assert change.weight.abs().max() > 0.1


def test_heads_that_learn_the_site_are_better_on_other_pictures(change: HeadChange) -> None:
    inputs, labels = site(60, 2)
    old, new = heads_of(0), heads_of(0)
    change.apply(new)
    before, after = (outputs_of(heads, inputs).flat_log_probabilities for heads in (old, new))
    comparison = HeadComparison.of(before, after, labels, units_of(range(60)))
    assert 0 < comparison.bound < comparison.improvement
    sharper = (3 * before).log_softmax(dim=-1)  # only the temperature differs
    scaled = HeadComparison.of(before, sharper, labels, units_of(range(60)))
    assert scaled.improvement == pytest.approx(0, abs=1e-6)


def test_a_lesion_counts_once_and_is_not_in_the_fit_of_its_own_outputs() -> None:
    inputs, labels = site(60, 0)
    heads, groups = heads_of(0), np.arange(60)
    once = refit_heads([outputs_of(heads, inputs)], heads, labels, units_of(groups), 1.0)
    twice = torch.cat([torch.arange(60), torch.arange(60)])
    copies = outputs_of(heads, inputs[twice])
    often = refit_heads([copies], heads, labels[twice], units_of(groups[twice]), 1.0)
    assert once is not None and often is not None
    assert torch.allclose(often.change.weight, once.change.weight, atol=1e-3)
    for held_out, _ in often.cross_fitted:
        assert len({*groups[twice][held_out]}) == len(held_out) / 2


LABELS = tuple(lesion % 2 + 1 for lesion in range(150) for _ in range(1 + lesion % 3 // 2))
"""By picture of `local`."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures whose colour is their class, of 150 lesions."""
    folder = tmp_path_factory.mktemp("heads") / "clinic"
    folder.mkdir()
    generator, rows = torch.Generator().manual_seed(0), ["path,label,lesion"]
    for lesion in range(150):
        label = lesion % 2 + 1
        noise = torch.randint(0, 90, (3, 36, 48), generator=generator)
        for picture in range(1 + lesion % 3 // 2):
            pixels = noise + 5 * picture + 150 * torch.eye(3)[label, :, None, None]
            name = f"{lesion:03}-{picture}.png"
            Image.fromarray(pixels.byte().permute(1, 2, 0).numpy()).save(folder / name)
            rows.append(f"{name},{NAMES[label]},{lesion}")
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder


@pytest.fixture(scope="module")
def source(site_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = shutil.copytree(site_source, tmp_path_factory.mktemp("heads") / "source")
    digests = torch.tensor([3])  # of an image that the site does not have
    write_training_images(folder, save({"adapters": digests}))
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads") / "fitted"


def fit(source: Path, data: Path, out: Path, policy: Path, *options: str) -> str:
    """Runs `site fit`, which must end with status 0; returns its output."""
    done = succeed(
        "site", "fit", source, "--data", data, "--out", out, "--policy", policy, "--device", "cpu",
        "--sensitivity", "0.75", "--coverage", "0.8", "--always-include-rare", "--samples", "2",
        *options,
    )  # fmt: skip
    return done.out


HELD_OUT = ("--hold-out", "0.5")


@pytest.fixture(scope="module")
def output(source: Path, local: Path, out: Path, site_policy: Path) -> str:
    return fit(source, local, out, site_policy, *HELD_OUT)


def test_heads_that_help_are_written_and_nothing_else_of_the_weights_changes(
    output: str, source: Path, out: Path
) -> None:
    assert "| heads | 50 lesions | 75 | refitted: lower NLL of 75 held-out lesions" in output
    assert "| held-out pictures | before | after | thresholds only |\n" in output
    checkpoint = load_checkpoint(out)
    assert f"revision {checkpoint.revision[:19]}\n" in output
    read_known_answer(out, checkpoint.config)
    old, new = (load_file(folder / ADAPTERS_FILE) for folder in (source, out))
    assert {name for name in old if not torch.equal(old[name], new[name])} == {
        "heads.weight", "heads.bias",
    }  # fmt: skip
    assert checkpoint.config.bfloat16 == ()
    assert "The heads were refitted" in (out / "README.md").read_text()


@pytest.mark.usefixtures("output")
def test_both_modes_of_the_written_checkpoint_know_the_site(
    source: Path, out: Path, local: Path
) -> None:
    labels, paths = torch.tensor(LABELS), sorted(local.glob("*.png"))
    for mode in ("det", "stoch"):
        old, new = (
            EulerLoRA.load(folder, "cpu").predict(paths, mode, seed=0).probabilities
            for folder in (source, out)
        )
        right = (new[:, 1:].argmax(dim=1) + 1 == labels).double().mean()
        assert right > 0.95
        assert right > (old[:, 1:].argmax(dim=1) + 1 == labels).double().mean()


def test_pictures_of_the_fit_are_training_images_and_establish_nothing(
    output: str, out: Path
) -> None:
    (fitted,) = re.findall(r"Fitted on (\d+) images", output)
    assert len(read_training_images(out)["adapters"]) == int(fitted) + 1
    (evidence,) = read_policy(out / "policy.toml").evidence
    assert evidence.fit.in_training == int(fitted)
    assert not evidence.fit.routine.established


@pytest.mark.parametrize(
    ("options", "shuffled", "result"),
    [((), False, "only pictures of --hold-out"), (HELD_OUT, True, "not refitted: no")],
)
def test_heads_stay_if_nothing_shows_that_it_helps(
    source: Path, local: Path, site_policy: Path, tmp_path: Path,
    options: tuple[str, ...], shuffled: bool, result: str,
) -> None:  # fmt: skip
    data = shutil.copytree(local, tmp_path / "clinic")
    if shuffled:
        labels = np.random.default_rng(0).permutation(LABELS)
        rows = [
            f"{path.name},{NAMES[label]}"
            for path, label in zip(sorted(data.glob("*.png")), labels, strict=True)
        ]
        (data / "labels.csv").write_text("\n".join(["path,label", *rows]))
    out = tmp_path / "out"
    assert result in fit(source, data, out, site_policy, *options)
    assert (out / ADAPTERS_FILE).read_bytes() == (source / ADAPTERS_FILE).read_bytes()


def test_outputs_of_a_network_with_a_change_are_those_of_the_network_with_changed_heads() -> None:
    """What the heads read follows from the directions, the first features of a real network."""
    network = random_network()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 32, 32, generator=generator)
    classes, width = network.heads.weight.shape[1:]
    weight = torch.randn(classes, width, generator=generator).double()
    change = HeadChange(0.5, weight, weight[:, 0])

    def outputs() -> Trajectories:
        draws = [Draw(mode="stoch", samples=2, seed=1)] * 2
        return Trajectories.cat(predict_images(network, images, draws))

    changed = with_changed_heads(outputs(), network.heads, [(np.arange(2), change)])
    change.apply(network.heads)
    expected = outputs()
    assert torch.allclose(changed.log_probabilities, expected.log_probabilities, atol=1e-4)
    assert torch.allclose(changed.log_partition, expected.log_partition, atol=1e-4)
