"""Training of adapters: from a recipe to a calibrated checkpoint, through the program."""

import json
import re
import shlex
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import (
    DEFAULT_CHECKPOINT,
    load_checkpoint,
    read_config,
    stored_revision,
)
from eulerlora.checkpoint.weights import save_backbone
from tests.conftest import random_backbone, random_network
from tests.program import refusal, run, succeed
from tests.training.conftest import COLOURS, PER_CLASS, set_options, write_image, write_recipe
from training.adaptation.network_training import train_adapters
from training.adaptation.objective import AdapterObjective
from training.data.copies import known_images
from training.data.datasets import checkpoint_dataset, read_dataset
from training.data.images import ImageParts
from training.evaluation.report_schema import read_report
from training.optimisation.run import Run, accelerator_on
from training.recipe.file import read_recipe
from training.recipe.schema import AdapterRecipe

ONE_THRESHOLD = ("--set", "evaluation.calibrated=[1]")  # faster where thresholds do not matter
LEARNS = ("--set", "training.epochs=12")


@pytest.fixture(scope="module")
def trained(labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of RECIPE; tests that change it use `trained_copy`."""
    recipe = write_recipe(tmp_path_factory.mktemp("trained"))
    out = recipe.parent / "run"
    succeed("train", recipe, "--data", labelled, "--out", out,
               *LEARNS, "--set", "data.path=set")  # fmt: skip
    return out


@pytest.fixture
def trained_copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def test_a_recipe_gives_a_calibrated_checkpoint_that_classifies_the_test_images(
    trained: Path, labelled: Path
) -> None:
    (chart,) = trained.glob("reliability-*.png")
    (results,) = trained.glob("results-*.csv")
    card = (trained / "README.md").read_text()
    assert all(f"]({beside.name})" in card for beside in (chart, results))
    assert sorted(path.name for path in trained.iterdir()) == [
        "README.md",
        "adapters.safetensors",
        "backbone.safetensors",
        "config.json",
        "known_answer.json",
        "known_answer.png",
        "ood.safetensors",
        chart.name,
        "report",
        results.name,
        "training_images.safetensors",
    ]
    parts = checkpoint_dataset(read_config(trained), labelled).parts
    assert known_images(trained, parts["train"]).trained == parts["train"]
    assert known_images(trained, parts["test"]).trained == []
    model = EulerLoRA.load(trained)
    images = sorted((labelled / "set" / "test").rglob("*.png"))
    for mode, samples in (("det", None), ("stoch", 16)):  # many samples reduce chance
        prediction = model.predict(images, mode, samples)
        correct = [
            label == path.parent.name for label, path in zip(prediction.labels, images, strict=True)
        ]
        assert sum(correct) / len(correct) > 0.8
        assert prediction.ood is not None
        assert prediction.unfamiliar is not None

    config = json.loads((trained / "config.json").read_text())
    assert config["classes"][2] == {"name": "red", "description": "a red square"}
    thresholds = config["thresholds"]
    options = [threshold["options"] for threshold in thresholds]
    assert {(one["mode"], one["samples"]) for one in options} == {
        ("det", 1), ("stoch", 1), ("stoch", 2), ("stoch", 4), ("stoch", 8), ("stoch", 16),
    }  # fmt: skip
    assert all("calibration part" in threshold["data"] for threshold in thresholds)
    assert config["provenance"]["seed"] == 3
    assert config["provenance"]["recipe"]["data"]["path"] == "set"
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}
    assert (trained / "adapters.safetensors").stat().st_size < 2 * 8_000
    command = "eulerlora train tiny.toml --data DIR"
    assert command in (trained / "README.md").read_text()


def test_evaluate_repeats_the_report_of_training_and_the_card_follows_from_it(
    trained_copy: Path, labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    done = succeed(
        "evaluate", trained_copy, "--data", labelled, "--ood", labelled / "other",
        "--samples", "2", "--out", out,
    )  # fmt: skip
    report = json.loads((out / "report.json").read_text())
    assert report["images"] == 3 * PER_CLASS["test"]
    assert [mode["options"]["mode"] for mode in report["modes"]] == ["det", "stoch"]
    settings = report["method"]["settings"]
    steps = read_config(trained_copy).provenance["training"]["steps"]
    assert (settings["training.steps"], settings["data.kind"]) == (steps, "imagefolder")
    assert not settings.keys() & {"seed", "data.path", "adapters.rank"}
    tables, _ = (out / "report.md").read_text().split("## Charts")
    _, results = tables.split("\n", maxsplit=1)
    assert results.strip() in done.out
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(path.name for path in (trained_copy / "report").iterdir())
    for name in names:
        assert (out / name).read_bytes() == (trained_copy / "report" / name).read_bytes()

    patterns = ("README.md", "reliability-*.png", "results-*.csv")
    files = [file for pattern in patterns for file in trained_copy.glob(pattern)]
    assert len(files) == 3
    before = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    succeed("card", trained_copy, "--report", out)
    assert [file.read_bytes() for file in files] == before


def test_an_evaluation_tests_on_all_images_of_another_folder_only(
    trained: Path, image_folder: Path, tmp_path: Path
) -> None:
    other, noise = tmp_path / "other", np.random.default_rng(9)
    for part, count in (("Train", 5), ("Test", 4)):
        for name, colour in COLOURS.items():
            (other / part / name).mkdir(parents=True)
            for index in range(count):
                write_image(other / part / name / f"{index}.png", colour, noise)
    (other / "Test" / "red" / "x.bmp").write_bytes(b"BM" + bytes(20))
    renamed, same = tmp_path / "renamed", tmp_path / "data" / "set"
    for part in ("train", "test"):
        shutil.copytree(image_folder / part, renamed / part)
    shutil.copytree(other, same)

    def tested(data: Path):
        report = tmp_path / f"{data.name} report"
        succeed("evaluate", trained, "--data", data, "--mode", "det", "--out", report)
        return read_report(report)

    whole = tested(other)
    assert (whole.images, whole.data) == (27, "other, all images")
    text = (tmp_path / "other report" / "report.md").read_text()
    assert "BMP" in text and "all images are tested on" in text
    of_training = tested(renamed)
    assert of_training.images == 3 * PER_CLASS["test"]
    assert "only the test part" in " ".join(of_training.notes)
    of_same_name = tested(same.parent)
    assert (of_same_name.images, "rename" in " ".join(of_same_name.notes)) == (12, True)


def test_an_evaluation_of_another_folder_leaves_out_what_was_trained_on_and_says_so(
    trained: Path, labelled: Path, tmp_path: Path
) -> None:
    images, other = checkpoint_dataset(read_config(trained), labelled), tmp_path / "other"
    noise, rows = np.random.default_rng(9), ["path,label,group"]
    for name in ("blue", "red"):  # no green
        shown = [one for one in images.parts["train"] if images.class_names[one.label] == name]
        (other / name).mkdir(parents=True)
        for index in range(6):
            path = other / name / f"{index}.png"
            if index < 2:
                shutil.copy(labelled / "set" / shown[index].name, path)
            else:
                write_image(path, COLOURS[name], noise)
            # 2 is another picture of the patient of 1
            rows.append(f"{name}/{index}.png,{name},{name}-{1 if index == 2 else index}")
    arguments = ("--data", other, "--mode", "det")

    def tested(out: str):
        done = succeed("evaluate", trained, *arguments, "--out", tmp_path / out)
        return read_report(tmp_path / out), done.err

    report, err = tested("by picture")
    assert (report.images, report.seen) == (8, 0)
    assert any("4 were in the training" in note and note in err for note in report.notes)
    (other / "labels.csv").write_text("\n".join(rows))
    report, _ = tested("by group")
    assert report.images == 6
    assert "2 more are of their groups" in " ".join(report.notes)
    (other / "labels.csv").write_text("\n".join([*rows[:3], *rows[7:9]]))
    assert "4 were in the training" in refusal("evaluate", trained, *arguments)


def test_an_evaluation_on_calibration_pictures_in_another_folder_says_so(
    trained: Path, labelled: Path, tmp_path: Path
) -> None:
    images = checkpoint_dataset(read_config(trained), labelled)
    calibrated = images.parts["calibration"]
    for image in calibrated:
        folder = tmp_path / "other" / images.class_names[image.label]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(labelled / "set" / image.name, folder / f"{len(list(folder.iterdir()))}.png")
    report = tmp_path / "report"
    arguments = ("--data", tmp_path / "other", "--mode", "det", "--out", report)
    done = succeed("evaluate", trained, *arguments)
    assert f"fitted to {len(calibrated)} of the {len(calibrated)} test images" in done.out
    assert (read_report(report).fitted, read_report(report).seen) == (len(calibrated), 0)


def test_an_external_set_may_lack_add_and_rename_classes(trained: Path, tmp_path: Path) -> None:
    data, noise = tmp_path / "elsewhere", np.random.default_rng(10)
    for name, colour in {"Blue": "blue", "crimson": "red", "grey": "green"}.items():
        (data / name).mkdir(parents=True)
        for index in range(4):
            write_image(data / name / f"{index}.png", COLOURS[colour], noise)
    command = ["evaluate", trained, "--data", data, "--mode", "det", "--out", tmp_path / "report"]
    suggested = shlex.split(run(*command, "--class", "crimson=red").out)
    assert suggested == [
        "eulerlora", *map(str, command), "--class", "crimson=red",
        "--class", "Blue=blue", "--ignore", "grey",
    ]  # fmt: skip
    done = succeed(*suggested[1:])
    report = read_report(tmp_path / "report")
    assert str(tmp_path / "report") in run(*suggested[1:]).err  # no report is replaced
    assert report.images == 8
    assert "no picture is of green" in " ".join(report.notes)
    assert "nan" not in done.out.lower()


def test_calibrate_repeats_the_thresholds_of_training_and_sets_the_sampler(
    trained: Path, labelled: Path, tmp_path: Path
) -> None:
    again, balanced = tmp_path / "again", tmp_path / "balanced"
    done = succeed("calibrate", trained, "--data", labelled, "--out", again)
    assert f"{again}: revision {stored_revision(trained)[:19]}" in done.out
    images = read_config(again).thresholds[0].images
    assert read_config(again).margins is None
    needed, available = re.findall(r"\| decision margins \| (\d+) images \| (\d+) \|", done.out)[0]
    assert int(available) == images < int(needed)
    for file in (path for path in trained.iterdir() if path.is_file()):
        assert (again / file.name).read_bytes() == file.read_bytes()

    succeed("calibrate", trained, "--data", labelled, "--sampler", "balanced", "--out", balanced)
    assert read_config(balanced).sampler == "balanced"
    done = succeed("evaluate", balanced, "--data", labelled, "--mode", "stoch")
    assert "stoch, 4 balanced" in done.out
    assert "outside of the checkpoint" in refusal(
        "calibrate", trained, "--data", labelled, "--out", trained / "new", status=2
    )
    assert str(balanced) in refusal("calibrate", trained, "--data", labelled, "--out", balanced)


def test_calibrate_adds_prediction_sets_for_predict(
    trained: Path, labelled: Path, tmp_path: Path
) -> None:
    options, exact, both = ("--data", labelled, "--coverage", "0.5"), tmp_path / "1", tmp_path / "2"
    done = succeed("calibrate", trained, *options, "--precision", "float32", "--out", exact)
    assert "1 - p up to blue 0." in done.out
    done = run("predict", exact, labelled / "other", "--json", "--coverage", "0.5")
    assert done.err == ""
    assert all(json.loads(line)["prediction_set"] is not None for line in done.out.splitlines())
    done = succeed("calibrate", trained, *options, "--precision", "bfloat16", "--out", both)
    config = read_config(both)
    fitted = {entry.options.precision for entry in (*config.thresholds, *config.prediction_sets)}
    assert fitted == {"float32", "bfloat16"}
    error = refusal(
        "calibrate", trained, "--data", labelled, "--coverage", "0.9", "--out", tmp_path / "3"
    )
    assert "expected at least 9 calibration pictures of each class" in error


def test_the_best_epoch_views_balanced_draws_and_another_size_train_a_checkpoint(
    recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    settings = (
        "data.path=set",
        "data.split=lesion-best-epoch",
        "training.best_epoch=true",
        "training.augmented_views=own",
        "training.views=4",
        "evaluation.views=8",
        "training.class_balance=0.5",
        "training.head=bootstrap-probes",
        "training.epochs=3",
        "backbone.image_size=64",
        "colour_constancy=shades-of-gray",
        "canvas=[96, 72]",
        "training.augmentation=dermoscopy",
    )
    out, file = tmp_path / "out", recipe_file.parent / "backbone.safetensors"
    save_backbone(file, random_backbone(), {}, torch.float32)  # the checkpoint stores float16
    succeed("train", recipe_file, "--data", labelled, "--out", out, *set_options(settings),
               *ONE_THRESHOLD)  # fmt: skip
    checkpoint = load_checkpoint(out)
    training = checkpoint.config.provenance["training"]
    assert len(training["validation_by_epoch"]["det"]["nll"]) == 3
    assert training["validation_images"] == 6
    assert checkpoint.network.preprocessing.colour_constancy == "shades-of-gray"
    assert checkpoint.network.preprocessing.size == 64
    assert checkpoint.network.preprocessing.canvas == (96, 72)
    for other in ("training.augmentation=paper", "canvas=[60, 50]"):
        error = refusal("train", recipe_file, "--data", labelled, "--out", tmp_path / "other",
                        *set_options((*settings, other)))  # fmt: skip
        assert "canvas" in error
    assert checkpoint.network.backbone.settings.image_size == 64
    assert checkpoint.config.views == 8
    heads = checkpoint.network.heads.weight
    assert not torch.allclose(heads[0], heads[1])


def test_a_run_with_dropout_and_metrics_by_epoch_continues_to_the_same_weights(
    recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    settings = (
        "data.path=set",
        "data.split=lesion-best-epoch",
        "data.at_most={train = 30}",
        "training.metrics_by_epoch=true",
        "training.adapter_dropout=0.3",
        "training.sampling=false",
        "training.samples=1",
        "training.epochs=3",
        "training.state_every_s=0",
    )
    recipe = read_recipe(recipe_file, AdapterRecipe, settings)
    images = read_dataset(recipe.data, labelled)
    assert len(images.parts["train"]) == 30
    results, weights = [], []
    for interrupted in (False, True):
        state = tmp_path / f"{interrupted}.safetensors"
        accelerator = accelerator_on(torch.device("cpu"))
        run_ = Run(accelerator, recipe.seed, recipe.without_source, state, resume=True)
        if interrupted:
            with pytest.raises(RuntimeError, match="stopped"):
                _train_until_step(7, recipe, images, run_)
        network = random_network()
        results.append(train_adapters(network, recipe, images, None, run_))
        weights.append([p.detach() for _, p in network.adapter_parameters()])
    assert results[0]["validation_by_epoch"] == results[1]["validation_by_epoch"]
    assert results[0]["validation_by_epoch"].keys() == {"det", "stoch"}
    for first, second in zip(*weights, strict=True):
        assert torch.equal(first, second)


def _train_until_step(step: int, recipe: AdapterRecipe, images: ImageParts, run_: Run) -> None:
    """Trains with the state saved after every step; raises RuntimeError at the step."""
    draw = AdapterObjective.draw

    def draw_or_stop(objective: AdapterObjective, *arguments: int) -> object:
        if arguments[1] == step:
            raise RuntimeError("stopped")
        return draw(objective, *arguments)

    with patch.object(AdapterObjective, "draw", draw_or_stop):
        train_adapters(random_network(), recipe, images, None, run_)


def test_a_finished_run_is_resumed_on_its_data_and_seed_only(
    trained_copy: Path, recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(labelled, tmp_path / "data"))
    command = ("train", recipe_file, "--data", data, "--out", trained_copy, "--resume",
               *LEARNS, "--set", "data.path=set")  # fmt: skip
    weights = (trained_copy / "adapters.safetensors").read_bytes()
    assert str(trained_copy) in refusal(*command, "--seed", "9")
    picture = data / "set" / "test" / "red" / "00.png"
    picture.rename(picture.with_name("new.png"))
    assert str(trained_copy) in refusal(*command)
    picture.with_name("new.png").rename(picture)
    config = trained_copy / "config.json"
    written = config.stat().st_mtime_ns
    assert "is finished" in succeed(*command).out
    assert config.stat().st_mtime_ns == written
    (trained_copy / "report" / "report.json").unlink()
    assert str(trained_copy / "report: expected an empty") in refusal(*command)
    shutil.rmtree(trained_copy / "report")  # a run that ended before its evaluation
    assert "test accuracy" in succeed(*command).out
    assert (trained_copy / "adapters.safetensors").read_bytes() == weights


def test_a_run_without_evaluation_is_evaluated_when_it_is_resumed(
    recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ("train", recipe_file, "--data", labelled, "--out", out, "--set", "data.path=set",
               *ONE_THRESHOLD)  # fmt: skip
    for _ in range(2):
        assert "test accuracy" not in succeed(*command, "--resume", "--no-evaluation").out
        assert not (out / "report").exists()
    revision = stored_revision(out)
    assert read_config(out).thresholds
    assert "test accuracy" in succeed(*command, "--resume").out
    assert stored_revision(out) == revision
    assert "Not evaluated yet" not in (out / "README.md").read_text()


def test_no_epoch_leaves_the_probe_that_starts_a_training(
    recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    heads = []
    for epochs, out in ((0, tmp_path / "probe"), (1, tmp_path / "trained")):
        settings = ("data.path=set", "training.head=linear-probe", f"training.epochs={epochs}",
                    "training.learning_rate=1e-7",
                    *(["target={name='alarm', classes=['red']}"] * epochs or
                      ["adapters.min_rank=4"]))  # fmt: skip
        done = succeed("train", recipe_file, "--data", labelled, "--out", out,
                       *set_options(settings), *ONE_THRESHOLD)  # fmt: skip
        assert "data: set, image folder; 3 classes" in done.out
        assert "test accuracy, det: " in done.out
        assert done.out.count(f"checkpoint in {out}\n") == 1
        assert "verdict: Not tested against the linear probe" in done.out
        assert "linear probe that the training started from" in (out / "README.md").read_text()
        assert f"next: eulerlora serve {out}" in done.out
        for text in (done.out, (out / "README.md").read_text()):  # without draws not in stoch
            assert ("mode stoch" in text or 'mode="stoch"' in text) == (epochs == 1)
        assert (f"eulerlora policy fit {out}" in done.out) == (epochs == 1)  # requires a target
        network = load_checkpoint(out).network
        assert (network.blocks[0].up == 0).all() == (epochs == 0)
        heads.append(network.heads.weight)
    torch.testing.assert_close(heads[0], heads[1], atol=1e-3, rtol=1e-3)
    choice = ("data.path=set", "training.epochs=0", "data.split=lesion-validation")
    done = succeed("train", recipe_file, "--data", labelled, "--out", tmp_path / "choice",
                   *set_options(choice), *ONE_THRESHOLD)  # fmt: skip
    assert "validation accuracy, det: " in done.out


def test_results_on_images_of_the_pretraining_are_marked(
    recipe_file: Path, image_folder: Path, tmp_path: Path
) -> None:
    origin = read_config(DEFAULT_CHECKPOINT).backbone.provenance
    shown = {"data": [], "unlabelled": [{"kind": "images", "path": "elsewhere/train"}]}
    origin |= {"recipe": origin["recipe"] | shown, "data": "train"}
    backbone = recipe_file.parent / "backbone.safetensors"
    save_backbone(backbone, random_backbone(), origin, torch.float16)
    shutil.copytree(image_folder / "train", tmp_path / "data" / "train")
    shutil.copytree(image_folder / "train" / "blue", tmp_path / "data" / "blue")
    done = succeed(
        "train", recipe_file, "--data", tmp_path / "data", "--out", tmp_path / "run",
        "--set", "data.path=train", "--set", "training.epochs=0",
        "--set", "evaluation.ood=[{kind='images', path='blue'}]", *ONE_THRESHOLD,
    )  # fmt: skip
    report = read_report(tmp_path / "run" / "report")
    assert report.seen == report.images == 12
    assert report.ood_sets["blue"].seen == 20
    assert done.out.count("12 of the 12 test images") == 2  # before the training, and at its end
    assert "12 of the 12 test images" in (tmp_path / "run" / "README.md").read_text()

    # A backbone with its checkpoint knows them by their pixels, also as pictures of another folder.
    for number, picture in enumerate(sorted((tmp_path / "data" / "train").rglob("*.png"))):
        copy = tmp_path / "other" / picture.parent.name / f"mine{number}.png"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, copy)
    command = (
        "train", recipe_file, "--data", tmp_path / "other", "--set", "training.epochs=0",
        "--set", f"backbone.weights={tmp_path / 'run' / 'backbone.safetensors'}",
        "--set", "evaluation.ood=[]", *ONE_THRESHOLD,
    )  # fmt: skip
    assert "12 of the 12 test images" in succeed(*command, "--check").out
    succeed(*command, "--out", tmp_path / "again")
    assert read_report(tmp_path / "again" / "report").seen == 12


def test_outliers_lower_the_confidence_on_similar_images_and_are_recorded(
    recipe_file: Path, trained: Path, labelled: Path, tmp_path: Path
) -> None:
    data, noise = tmp_path / "with-outliers", np.random.default_rng(1)
    shutil.copytree(labelled, data)
    for part in ("train", "test"):
        (data / "strange" / part).mkdir(parents=True)
        for index in range(20):
            write_image(data / "strange" / part / f"{index}.png", (230, 220, 30), noise)
    out = tmp_path / "exposed"
    succeed(
        "train", recipe_file, "--data", data, "--out", out, "--set", "data.path=set",
        *LEARNS, "--set", "outliers.path=strange", "--set", "outliers.images=15",
        "--set", "evaluation.sampler=balanced", *ONE_THRESHOLD,
    )  # fmt: skip
    images = sorted((data / "strange" / "test").iterdir())
    exposed, plain = (
        EulerLoRA.load(folder).predict(images, "stoch", samples=4) for folder in (out, trained)
    )
    assert exposed.msp.mean() < plain.msp.mean() - 0.1
    assert read_config(out).sampler == "balanced"
    provenance = read_config(out).provenance["outliers"]
    assert (provenance["images"], provenance["skipped"]["count"]) == (15, 0)
    assert "Outlier exposure: 15 images of strange" in (out / "README.md").read_text()


def test_bad_images_end_every_command_or_are_skipped_listed_and_recorded(
    recipe_file: Path, labelled: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(labelled, tmp_path / "bad"))
    bad = ("set/train/red/03.png", "set/test/red/01.png", "other/2.png")
    for name in bad:
        (data / name).write_bytes(b"broken")
    out = tmp_path / "run"
    training = ["train", recipe_file, "--data", data, "--out", out, "--set", "data.path=set",
                *ONE_THRESHOLD]  # fmt: skip
    evaluation = ["evaluate", out, "--data", data, "--ood", data / "other", "--mode", "det",
                  ]  # fmt: skip
    for command in (
        training,
        evaluation,
        ["calibrate", out, "--data", data, "--out", tmp_path / "new"],
    ):
        error = refusal(*command)
        assert any(name in error for name in bad)
        done = succeed(*command, "--skip-bad")
        listed = [line for line in done.err.splitlines() if line.startswith("  ")]
        assert f"skipped {len(listed)} images:" in done.err.splitlines()
        assert all(any(name in line for line in listed) for name in bad[:2])
    provenance = json.loads((out / "config.json").read_text())["provenance"]
    assert provenance["skipped"] == {"count": 2, "names": sorted(bad[:2])}
    assert "2 unusable images were left out" in (out / "README.md").read_text()
