"""From a recipe to a checkpoint that answers, through the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eulerlora import CheckpointError, EulerLoRA, NonFiniteError
from eulerlora.backbone import load_backbone, save_backbone
from eulerlora.checkpoint import read_config
from tests.conftest import random_backbone, random_network
from tests.full_disk import file_size_limit
from tests.program import run
from tests.training.conftest import PER_CLASS, write_image
from training.adaptation.train import round_adapters, state_file
from training.fit.run_state import stored_steps
from training.reporting.model_card import leave_card

PROGRAM = [sys.executable, "-c", "from eulerlora_client.commands.program import main; main()"]


@pytest.fixture(scope="module")
def labelled(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose `set` holds train/ and test/, beside the folder `other`."""
    data = tmp_path_factory.mktemp("data")
    (data / "set").mkdir()
    for part in ("train", "test"):
        (data / "set" / part).symlink_to(image_folder / part)
    (data / "other").symlink_to(image_folder / "other")
    return data


@pytest.fixture
def trained(recipe_file: Path, labelled: Path) -> Path:
    out = recipe_file.parent / "run"
    done = run("train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set")
    assert done.status == 0, done.err
    return out


def test_a_recipe_gives_a_calibrated_checkpoint_that_has_learned(
    trained: Path, labelled: Path
) -> None:
    assert sorted(path.name for path in trained.iterdir()) == [
        "README.md",
        "adapters.safetensors",
        "backbone.safetensors",
        "config.json",
        "known_answer.json",
        "known_answer.png",
        "reliability.png",
        "report",
    ]
    model = EulerLoRA.load(trained)
    images = sorted((labelled / "set" / "test").rglob("*.png"))
    for mode in ("det", "stoch"):
        prediction = model.predict(images, mode=mode, samples=16)  # the more, the less chance
        right = [
            label == path.parent.name for label, path in zip(prediction.labels, images, strict=True)
        ]
        assert sum(right) / len(right) > 0.8
        assert prediction.ood is not None

    config = json.loads((trained / "config.json").read_text())
    assert config["classes"][2] == {"name": "red", "description": "a red square"}
    assert {(each["mode"], each["samples"]) for each in config["thresholds"]} == {
        ("det", 1), ("stoch", 1), ("stoch", 2), ("stoch", 4), ("stoch", 8), ("stoch", 16),
        ("stoch", "auto"),
    }  # fmt: skip
    assert all("calibration part" in each["data"] for each in config["thresholds"])
    assert config["provenance"]["seed"] == 3
    assert config["provenance"]["recipe"]["data"]["path"] == "set"
    stored = {p.dtype for p in model.network.parameters()}
    assert stored == {torch.float32}
    assert (trained / "adapters.safetensors").stat().st_size < 2 * 8_000


def test_the_checkpoint_is_taken_by_evaluate_predict_and_calibrate(
    trained: Path, labelled: Path
) -> None:
    out = trained.parent / "report"
    done = run(
        "evaluate", trained, "--data", labelled, "--ood", labelled / "other",
        "--samples", "2", "--corrupted-images", "0", "--out", out,
    )  # fmt: skip
    assert done.status == 0, done.err
    report = json.loads((out / "report.json").read_text())
    assert report["images"] == 3 * PER_CLASS["test"]
    assert [each["mode"] for each in report["modes"]] == ["det", "stoch"]
    tables, _ = (out / "report.md").read_text().split("## Pictures")
    _, figures = tables.split("\n", maxsplit=1)
    assert figures.strip() in done.out
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (trained / "report").iterdir())
    for name in names:
        assert (out / name).read_bytes() == (trained / "report" / name).read_bytes()

    files = [trained / "README.md", trained / "reliability.png"]
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    leave_card(trained, out)
    assert [file.read_bytes() for file in files] == before

    config = (trained / "config.json").read_text()
    done = run("calibrate", trained, "--data", labelled)
    assert done.status == 0, done.err
    assert (trained / "config.json").read_text() == config

    done = run("calibrate", trained, "--data", labelled, "--sampler", "balanced")
    assert done.status == 0, done.err
    assert read_config(trained).sampler == "balanced"
    for options, title in (((), "stoch, 4 balanced"), (("--sampler", "independent"), "stoch, 4 s")):
        done = run("evaluate", trained, "--data", labelled, "--mode", "stoch", *options)
        assert title in done.out, done.err
    done = run("calibrate", trained, "--data", labelled, "--sampler", "independent")
    assert (trained / "config.json").read_text() == config

    done = run("predict", trained, labelled / "other", "--json", "--mode", "stoch")
    assert done.status == 0, done.err
    answers = [json.loads(line) for line in done.out.splitlines()]
    assert len(answers) == 5
    assert all(sum(each["probabilities"].values()) == pytest.approx(1) for each in answers)


def test_a_backbone_file_serves_at_another_image_size_and_stored_in_fewer_bits(
    recipe_file: Path, labelled: Path
) -> None:
    file = recipe_file.parent / "backbone.safetensors"
    save_backbone(file, random_backbone(), load_backbone(file).provenance, torch.float32)
    out = recipe_file.parent / "larger"
    done = run(
        "train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set",
        "--set", "training.epochs=1", "--set", "backbone.image_size=64",
    )  # fmt: skip
    assert done.status == 0, done.err
    model = EulerLoRA.load(out)
    assert model.config.preprocessing.size == 64
    assert model.network.backbone.image_size == 64


def test_a_linear_probe_s_head_answers_before_any_step_counts_and_outsiders_may_be_few(
    recipe_file: Path, labelled: Path
) -> None:
    out = recipe_file.parent / "probed"
    done = run(
        "train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set",
        "--set", "training.epochs=1", "--set", "training.learning_rate=1e-9",
        "--set", "training.head=linear-probe", "--set", "training.augmentation=dermoscopy",
        "--set", "evaluation.ood_images=2",
    )  # fmt: skip
    assert done.status == 0, done.err
    report = json.loads((out / "report" / "report.json").read_text())
    assert all(each["metrics"]["accuracy"]["value"] > 0.8 for each in report["modes"])
    assert report["ood_images"] == {"other": {"images": 2, "of": 5}}


def test_images_of_something_else_are_answered_with_doubt_and_told_of(
    recipe_file: Path, trained: Path, labelled: Path, tmp_path: Path
) -> None:
    data, noise = tmp_path / "with-others", np.random.default_rng(1)
    shutil.copytree(labelled, data)
    for part in ("train", "test"):
        (data / "strange" / part).mkdir(parents=True)
        for index in range(20):
            write_image(data / "strange" / part / f"{index}.png", (230, 220, 30), noise)
    out = tmp_path / "exposed"
    done = run(
        "train", recipe_file, "--data", data, "--out", out, "--set", "data.path=set",
        "--set", "outliers.path=strange", "--set", "outliers.images=15",
        "--set", "evaluation.sampler=balanced",
    )  # fmt: skip
    assert done.status == 0, done.err
    others = sorted((data / "strange" / "test").iterdir())
    exposed, plain = (EulerLoRA.load(each).predict(others, samples=4) for each in (out, trained))
    assert exposed.msp.mean() < 0.5 < plain.msp.mean()
    assert read_config(out).sampler == "balanced"
    facts = read_config(out).provenance["outliers"]
    assert (facts["images"], facts["skipped"]["count"]) == (15, 0)
    assert "none of its classes: 15 images of strange, each with" in (out / "README.md").read_text()


def test_published_weights_from_a_file_are_trained_on_where_nothing_can_be_downloaded(
    recipe_file: Path, labelled: Path, tiny_published
) -> None:
    base = ["train", recipe_file, "--data", labelled, "--set", "data.path=set",
            "--set", "training.epochs=1", "--set", f"backbone.weights={tiny_published.name}",
            "--out", recipe_file.parent / "published"]  # fmt: skip
    tiny_published.file.rename(recipe_file.parent / "fetched.pth")
    refused = run(*base)
    assert refused.status == 1
    assert tiny_published.source.as_uri() in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    done = run(*base, "--set", "backbone.file=fetched.pth")
    assert done.status == 0, done.err
    assert EulerLoRA.load(recipe_file.parent / "published").config.backbone.published


def test_bad_images_end_every_command_by_name_or_are_skipped_listed_and_recorded(
    recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(labelled, tmp_path / "bad"))
    bad = ("set/train/red/03.png", "set/test/red/01.png", "other/2.png")
    for name in bad:
        (data / name).write_bytes(b"broken")
    out = tmp_path / "run"
    training = ["train", recipe_file, "--data", data, "--out", out, "--set", "data.path=set",
                "--set", "training.epochs=1"]  # fmt: skip
    evaluation = [
        "evaluate",
        out,
        "--data",
        data,
        "--ood",
        data / "other",
        "--mode",
        "det",
        "--corrupted-images",
        "0",
    ]
    for command in (training, evaluation, ["calibrate", out, "--data", data]):
        refused = run(*command)
        assert refused.status == 1
        assert any(name in refused.err for name in bad)
        assert len(refused.err.strip().splitlines()) == 1
        done = run(*command, "--skip-bad")
        assert done.status == 0, done.err
        listed = done.err.splitlines()
        assert listed[0] == f"skipped {len(listed) - 1} images:"
        assert all(any(name in line for line in listed) for name in bad[:2])
    provenance = json.loads((out / "config.json").read_text())["provenance"]
    assert provenance["skipped"] == {"count": 2, "names": sorted(bad[:2])}
    assert "2 images were left out" in (out / "README.md").read_text()


def test_energy_and_the_recipe_s_file_are_recorded(
    recipe_file: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def a_kilowatt_hour() -> Iterator[dict[str, float]]:
        yield {"cpu package 0": 3.6e6}

    monkeypatch.setattr("training.adaptation.train.energy_used", a_kilowatt_hour)
    out = recipe_file.parent / "counted"
    done = run(
        "train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set",
        "--set", "training.epochs=1",
    )  # fmt: skip
    assert done.status == 0, done.err
    card = (out / "README.md").read_text()
    assert "1.000 kWh counted by cpu package 0" in card
    assert f"eulerlora train training/recipes/{recipe_file.name} --data DIR" in card


def test_ood_sets_of_one_name_are_told_apart(trained: Path, labelled: Path) -> None:
    out = trained.parent / "report"
    sets = [labelled / "set" / "train" / "red", labelled / "set" / "test" / "red"]
    done = run(
        "evaluate", trained, "--data", labelled, "--mode", "det", "--out", out,
        "--ood", sets[0], "--ood", sets[1], "--ood", labelled / "set" / "test",
        "--ood-images", "10", "--corrupted-images", "2",
    )  # fmt: skip
    assert done.status == 0, done.err
    report = json.loads((out / "report.json").read_text())
    assert report["ood_images"] == {
        "red": {"images": 10, "of": PER_CLASS["train"]},
        "test/red": {"images": 6, "of": PER_CLASS["test"]},
        "set/test": {"images": 10, "of": 3 * PER_CLASS["test"]},
    }
    assert report["modes"][0]["flagged"].keys() == {"test", *report["ood_images"]}
    assert "**set/test** (10 of 18 images)" in done.out
    assert "2 of 18 test images, evenly spaced" in done.out


def test_the_same_seed_gives_the_same_weights_and_another_one_others(
    recipe_file: Path, labelled: Path
) -> None:
    def weights(out: str, seed: str) -> bytes:
        folder = recipe_file.parent / out
        done = run(
            "train", recipe_file, "--data", labelled, "--out", folder, "--seed", seed,
            "--set", "data.path=set", "--set", "training.epochs=1",
        )  # fmt: skip
        assert done.status == 0, done.err
        return (folder / "adapters.safetensors").read_bytes()

    assert weights("first", "1") == weights("second", "1") != weights("third", "2")


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    """The program in a process of its own, to be stopped; one thread, as in the tests' process,
    since sums over another number of threads round differently.
    """
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupted_run_leaves_no_checkpoint_and_says_what_it_kept(
    recipe_file: Path, labelled: Path
) -> None:
    out = recipe_file.parent / "run"
    overrides = ["--set", "data.path=set", "--set", "training.epochs=100000"]
    process = start("train", recipe_file, "--data", labelled, "--out", out, *overrides)
    assert process.stdout is not None
    assert "epoch 1/" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no checkpoint was written" in errors
    assert str(state_file(out)) in errors
    assert len(errors.strip().splitlines()) == 1
    assert not out.exists()
    assert state_file(out).exists()
    assert not list(out.parent.glob(".run*"))


def test_a_killed_run_is_resumed_to_the_weights_of_an_uninterrupted_one(
    recipe_file: Path, labelled: Path
) -> None:
    settings = ["--set", "data.path=set", "--set", "training.state_every_s=0"]
    whole, resumed = (recipe_file.parent / name for name in ("whole", "resumed"))

    def arguments(out: Path) -> list[str | Path]:
        return ["train", recipe_file, "--data", labelled, "--out", out, *settings]

    process = start(*arguments(resumed))
    assert process.stdout is not None
    assert "epoch 1/" in process.stdout.readline()
    process.kill()
    process.communicate()
    assert state_file(resumed).exists()
    assert not resumed.exists()

    done = run(*arguments(resumed), "--resume")
    assert done.status == 0, done.err
    assert "continuing after step" in done.out
    assert not state_file(resumed).exists()
    assert run(*arguments(whole)).status == 0
    one, other = ((out / "adapters.safetensors").read_bytes() for out in (whole, resumed))
    assert one == other


def test_a_full_disk_ends_a_run_in_one_line_and_its_state_continues_it(
    recipe_file: Path, labelled: Path
) -> None:
    out, curves = recipe_file.parent / "run", recipe_file.parent / "curves"
    command: list[str | Path] = [
        "train", recipe_file, "--data", labelled, "--out", out, "--tensorboard", curves,
        "--set", "data.path=set", "--set", "training.epochs=60",
        "--set", "training.state_every_s=0",  # or the curves might be the first to fill the disk
    ]  # fmt: skip
    process = start(*command)
    assert process.stdout is not None
    assert "epoch 1/" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    kept = state_file(out).read_bytes()
    with file_size_limit(len(kept) // 2):
        done = run(*command, "--resume")
    assert done.status == 1
    assert len(done.err.strip().splitlines()) == 1
    assert f"disk full (file too large) while writing {state_file(out)}" in done.err
    step = stored_steps(state_file(out))
    assert f"the state of step {step} is kept in {state_file(out)}; free some space" in done.err
    assert state_file(out).read_bytes() == kept
    assert not list(out.parent.glob(".*"))

    done = run(*command, "--resume")
    assert done.status == 0, done.err
    assert f"continuing after step {step}" in done.out
    points = EventAccumulator(str(curves)).Reload().Scalars("step/loss")
    training = json.loads((out / "config.json").read_text())["provenance"]["training"]
    assert [point.step for point in points] == list(range(training["steps"]))


def test_a_loss_that_is_not_finite_ends_a_run_in_one_line_that_says_what_was_kept(
    recipe_file: Path, labelled: Path
) -> None:
    out = recipe_file.parent / "run"
    done = run(
        "train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set",
        "--set", "training.state_every_s=0", "--set", "training.learning_rate=1e30",
    )  # fmt: skip
    assert done.status == 1
    assert len(done.err.strip().splitlines()) == 1
    assert "at step 2 is nan; training stopped; no checkpoint was written" in done.err
    assert f"the state of step 2 is kept in {state_file(out)}" in done.err


def test_curves_inside_the_checkpoint_s_folder_are_refused(
    recipe_file: Path, labelled: Path
) -> None:
    out = recipe_file.parent / "run"
    done = run(
        "train", recipe_file, "--data", labelled, "--out", out, "--tensorboard", out / "curves",
    )  # fmt: skip
    assert done.status == 1
    assert "outside" in done.err
    assert not out.exists()


def test_a_state_of_another_recipe_or_no_state_at_all_is_refused_and_kept(
    recipe_file: Path, labelled: Path
) -> None:
    out = recipe_file.parent / "run"
    base = ["train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set"]
    process = start(*base, "--set", "training.epochs=100000")
    assert process.stdout is not None
    assert "epoch 1/" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    for content, changes in (
        (state_file(out).read_bytes(), ["training.epochs=100000", "adapters.scale=0.5"]),
        (b"not a state", ["training.epochs=100000"]),
    ):
        state_file(out).write_bytes(content)
        done = run(*base, "--resume", *(part for each in changes for part in ("--set", each)))
        assert done.status == 1
        assert str(state_file(out)) in done.err
        assert state_file(out).read_bytes() == content


def test_a_folder_that_holds_something_is_refused_before_any_work(
    recipe_file: Path, labelled: Path
) -> None:
    out = recipe_file.parent / "full"
    out.mkdir()
    (out / "precious").write_text("kept")
    done = run("train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set")
    assert done.status == 1
    assert str(out) in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert [path.name for path in out.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["training.epochs=0"], "training.epochs"),
        (["data.path=absent"], "absent"),
        (["backbone.weights=absent.safetensors"], "absent.safetensors"),
        (["backbone.weights=ViT_B_99"], "ViT_B_99"),
        (["backbone.image_size=50"], "image_size=50"),
        (["backbone.file=weights.pth"], "backbone.file"),
        (
            ["backbone.weights=ViT_B_32_Weights.IMAGENET1K_V1", "backbone.image_size=64"],
            "backbone.image_size",
        ),
        (['evaluation.ood=[{kind="images",path="absent"}]'], "absent"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    recipe_file: Path, labelled: Path, overrides: list[str], named: str
) -> None:
    out = recipe_file.parent / "run"
    settings = [part for each in ["data.path=set", *overrides] for part in ("--set", each)]
    done = run("train", recipe_file, "--data", labelled, "--out", out, *settings)
    assert done.status == 1
    assert named in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not out.exists()


def test_wrong_usage_is_one_line_and_status_2(recipe_file: Path) -> None:
    done = run("train", recipe_file)
    assert done.status == 2
    assert "--data" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_rounding_that_overflows_is_refused() -> None:
    network = random_network()
    with torch.no_grad():
        next(network.adapter_parameters())[1].fill_(1e6)
    with pytest.raises(NonFiniteError, match="float16"):
        round_adapters(network, torch.float16)


def test_a_corrupt_checkpoint_cannot_be_evaluated(trained: Path, labelled: Path) -> None:
    file = trained / "adapters.safetensors"
    os.truncate(file, file.stat().st_size - 10)
    done = run("evaluate", trained, "--data", labelled)
    assert done.status == 1
    assert "adapters.safetensors" in done.err
    with pytest.raises(CheckpointError):
        EulerLoRA.load(trained)
