"""`eulerlora compare`: tables, tests, files and refusals, for runs of several methods and seeds."""

import csv
import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import log_loss, roc_auc_score

from tests.conftest import DET, STOCH
from tests.program import refusal, succeed
from tests.training.synthetic_report import report, report_json

CLASSES = ("red", "blue", "green")
LABELS = np.arange(60) % 3
SETS = {"test": "test", "noise": "far", "moles": "near", "haze": "shifted"}
Rows = list[dict[str, str]]


def probabilities(seed: int, skill: float) -> np.ndarray:
    """(60, 3); `skill` is added to the logits of the true classes."""
    logits = np.random.default_rng(seed).normal(size=(60, 3)) + skill * np.eye(3)[LABELS]
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def finished_run(
    folder: Path,
    seed: int | None = 0,
    skill: float = 1.0,
    *,
    title: str = "LoRA, rank 20",
    images: int = 60,
    names: str = "{}.png",
    classes: tuple[str, ...] = CLASSES,
    sets: tuple[str, ...] = tuple(SETS),
    **changes: Any,
) -> Path:
    """Writes the report and the predictions of a run; `skill` is as in `probabilities`."""
    sampled = title.startswith("EulerLoRA")
    facts = {"title": title, "sampled": sampled, "recipe_sha256": title, "seed": seed}
    facts |= changes.pop("method", {})
    inner = folder / "report"
    inner.mkdir(parents=True)
    run = report(method=facts, revision=f"sha256:{folder.name}", clusters=images, **changes)
    (inner / "report.json").write_bytes(report_json(run))
    with gzip.open(inner / "predictions.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        columns = [*(f"p_{name}" for name in classes), "msp"]
        writer.writerow(["set", "group", "name", "cluster", "label", *asdict(DET), *columns])
        for number, name in enumerate(sets):
            for options, gain in ((DET, 0.0), (STOCH, 0.5 if sampled else 0.0)):
                shown = probabilities((seed or 0) + 100 * number, skill + gain)[:images]
                for index, row in enumerate(shown.tolist()):
                    label = classes[LABELS[index]] if name == "test" else ""
                    writer.writerow(
                        [name, SETS[name], names.format(index), "", label,
                         *asdict(options).values(), *row, max(row)]
                    )  # fmt: skip
    return folder


def table_rows(text: str, number: int = 0) -> list[list[str]]:
    """The cells of a table of a Markdown text, without its header."""
    tables = [part for part in text.split("\n\n") if part.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in tables[number].splitlines()[2:]]


def test_every_method_has_mean_and_deviation_over_its_seeds(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / f"lora-{seed}", seed) for seed in range(3)]
    text = succeed("compare", *runs).out
    nll = [log_loss(LABELS, probabilities(seed, 1.0)) for seed in range(3)]
    assert "60 images" not in text  # the report says how many it has
    assert f"{np.mean(nll):.3f} ± {np.std(nll, ddof=1):.3f}" in text
    (row,) = table_rows(text)
    assert row[:3] == ["LoRA, rank 20", "3", "2"]
    assert "Differences" not in text


def test_methods_are_compared_with_the_reference_in_pairs_of_seeds(tmp_path: Path) -> None:
    seeds = range(3)
    lora = [finished_run(tmp_path / f"lora-{seed}", seed) for seed in seeds]
    euler = "EulerLoRA, 2 adapters of rank 20"
    ours = [finished_run(tmp_path / f"e-{seed}", seed, 2.5, title=euler) for seed in seeds]
    metrics = [word for name in ("nll", "accuracy", "far_msp") for word in ("--metric", name)]
    words = (*ours, *lora, "--reference", lora[1], *metrics)
    text = succeed("compare", *words, "--out", tmp_path / "out", "--figures", "pdf").out
    names = [row[0] for row in table_rows(text)]
    assert names == [f"{euler}, det", f"{euler}, stoch, 4 samples", "LoRA, rank 20"]
    tested = table_rows(text, 1)
    assert tested[0][:3] == [f"{euler}, det", "NLL (nats)", "better"]
    assert tested[1][1:3] == ["accuracy", "better"]
    assert len(tested) == 6
    expected = np.mean(
        [
            log_loss(LABELS, probabilities(seed, 2.5)) - log_loss(LABELS, probabilities(seed, 1.0))
            for seed in seeds
        ]
    )
    assert tested[0][3] == f"{expected:+.4f}"
    with (tmp_path / "out" / "comparison.csv").open(newline="") as file:
        rows: Rows = list(csv.DictReader(file))
    of_lora = {row["metric"]: row for row in rows if row["method"] == "LoRA, rank 20"}
    assert of_lora["nll"]["seeds"] == "0 1 2"
    assert of_lora["nll"]["difference"] == ""
    auroc = [
        roc_auc_score(
            np.arange(120) < 60,
            np.concatenate([probabilities(s + k, 1.0).max(axis=1) for k in (0, 100)]),
        )
        for s in seeds
    ]
    assert [float(value) for value in of_lora["far_msp"]["values"].split()] == pytest.approx(
        auroc, rel=1e-5
    )
    (of_ours,) = (r for r in rows if r["method"] == f"{euler}, det" and r["metric"] == "nll")
    assert float(of_ours["difference"]) == pytest.approx(expected, rel=1e-5)
    assert float(of_ours["p_holm"]) >= float(of_ours["p"])


def test_the_folder_has_tables_for_a_paper_and_charts_with_all_methods(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / "a", 0), finished_run(tmp_path / "b", 0, title="100% & co_x")]
    succeed("compare", *runs, "--out", tmp_path / "out", "--figures", "svg")
    latex = (tmp_path / "out" / "comparison.tex").read_text()
    assert latex.startswith("% Needs \\usepackage{booktabs} in the preamble.\n")
    assert latex.count(r"\begin{tabular}") == 2
    assert r"100\% \& co\_x & 1 & 2 &" in latex
    assert r"\midrule" in latex
    markdown = (tmp_path / "out" / "comparison.md").read_text()
    for name in ("reliability", "risk-coverage", "roc"):
        with Image.open(tmp_path / "out" / f"{name}.png") as image:
            assert min(image.size) > 300
        svg = (tmp_path / "out" / f"{name}.svg").read_text()
        assert "LoRA, rank 20" in svg
        assert "100% &amp; co_x" in svg
        assert f"({name}.png)" in markdown
    assert "far: noise" in svg
    assert "shifted" not in svg
    reliability = (tmp_path / "out" / "reliability.svg").read_text()
    assert "faint: bins of fewer than 10 images" in reliability
    assert "opacity: 0.25" in reliability


def test_a_bin_of_few_images_is_faint_with_any_number_of_seeds(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / f"{seed}", seed, 50.0, images=9) for seed in range(3)]
    succeed("compare", *runs, "--out", tmp_path / "out", "--figures", "svg")
    assert "opacity: 0.25" in (tmp_path / "out" / "reliability.svg").read_text()


def test_other_seeds_are_not_paired_and_a_single_run_says_so(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / f"a{seed}", seed) for seed in (0, 1)]
    runs += [finished_run(tmp_path / f"b{seed}", seed, 1.5, title="SNGP") for seed in (5, 6)]
    text = succeed("compare", *runs).out
    assert "new test images and new seeds" in text and "A single run" not in text
    text = succeed("compare", *runs[:3]).out
    assert "A single run (SNGP) says nothing about other seeds" in text
    assert {row[-1] for row in table_rows(text, 1)} == {"other seeds: not paired"}


@pytest.mark.parametrize(
    ("of_lora", "of_sngp", "common", "stated", "note"),
    [
        ((0, 1), (0,), (0,), "seed 0 of both; seed 1 left out", "A single run (SNGP)"),
        ((0, 1), (2, 1), (1,), "seed 1 of both; seeds 2, 0 left out", "single common seed (SNGP)"),
        ((0, 1, 2), (1, 2), (1, 2), "seeds 1, 2 of both; seed 0 left out", ""),
        ((0, 1), (5, None), (), "seeds not recorded: not paired", ""),
    ],
)
def test_a_difference_is_that_of_the_common_seeds_and_says_which_are_left_out(
    tmp_path: Path,
    of_lora: tuple[int | None, ...],
    of_sngp: tuple[int | None, ...],
    common: tuple[int, ...],
    stated: str,
    note: str,
) -> None:
    runs = [finished_run(tmp_path / f"a{seed}", seed) for seed in of_lora]
    runs += [finished_run(tmp_path / f"b{seed}", seed, 1.5, title="SNGP") for seed in of_sngp]
    text = succeed("compare", *runs, "--metric", "nll", "--out", tmp_path / "out").out
    nll = [
        np.mean([log_loss(LABELS, probabilities(seed or 0, skill)) for seed in common or seeds])
        for seeds, skill in ((of_lora, 1.0), (of_sngp, 1.5))
    ]
    (row,) = table_rows(text, 1)
    assert (row[3], row[-1]) == (f"{nll[1] - nll[0]:+.4f}", stated)
    assert note in text and ("single" in text) == bool(note)
    with (tmp_path / "out" / "comparison.csv").open(newline="") as file:
        (tested,) = (row for row in csv.DictReader(file) if row["difference"])
    assert tested["seeds_compared"] == stated
    assert f"& {stated} " in (tmp_path / "out" / "comparison.tex").read_text()


def test_methods_with_one_title_are_told_apart_by_a_folder(tmp_path: Path) -> None:
    runs = [
        finished_run(tmp_path / name, seed, method={"recipe_sha256": rate})
        for name, rate, seed in (
            ("slow-0", "1e-4", 0),
            ("slow-1", "1e-4", 1),
            ("fast-0", "1e-3", 0),
        )
    ]
    names = [row[0] for row in table_rows(succeed("compare", *runs).out)]
    assert names == ["LoRA, rank 20 (slow-0)", "LoRA, rank 20 (fast-0)"]


def test_settings_that_differ_beside_the_method_are_named(tmp_path: Path) -> None:
    settings = {"data.split": "lesion", "training.epochs": 5, "canvas": None}
    runs = [
        finished_run(tmp_path / title, title=title, method={"settings": of_run})
        for title, of_run in (
            ("LoRA", settings),
            ("SNGP", settings | {"training.epochs": 10, "method.bound": 6}),
            ("IVON", settings | {"canvas": [448, 336]}),
            ("old", {}),
        )
    ]
    text = succeed("compare", *runs).out
    assert "difference: training.epochs (5, 10); canvas (null, [448, 336]).**" in text
    assert f"Settings are not recorded in {runs[-1]}." in text
    same = finished_run(tmp_path / "same", title="TFB", method={"settings": settings})
    assert "ettings" not in succeed("compare", runs[0], same).out


def test_few_images_are_not_tested(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / n, 0, images=19, title=n) for n in ("LoRA", "SNGP")]
    text = succeed("compare", *runs).out
    assert "Nothing is tested: fewer than 20 groups" in text


def test_a_difference_that_is_equal_in_all_resamples_has_no_interval(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / n, 0, 50.0, title=n) for n in ("LoRA", "SNGP")]
    text = succeed("compare", *runs, "--metric", "accuracy").out
    assert "new seeds" not in text  # of single runs
    (row,) = table_rows(text, 1)
    assert row[3:] == ["+0.0000", "no interval", "n/a", "n/a", "seed 0 of both"]


def test_a_model_that_was_shown_test_images_is_marked(tmp_path: Path) -> None:
    euler = "EulerLoRA, 2 adapters of rank 20"  # in two modes
    runs = [
        finished_run(tmp_path / name, seed, title=title, seen=seen)
        for name, seed, title, seen in (
            ("e0", 0, euler, 7), ("e1", 1, euler, 5), ("e2", 2, euler, 7), ("lora", 0, "LoRA", 0),
        )
    ]  # fmt: skip
    notes = [line for line in succeed("compare", *runs).out.splitlines() if "was shown" in line]
    assert len(notes) == 2
    assert f"{runs[0]}, {runs[2]}: " in notes[0] and "shown 7 of" in notes[0]
    assert f"{runs[1]}: " in notes[1] and "shown 5 of" in notes[1]
    assert "**All runs: " in succeed("compare", runs[0], runs[2]).out


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"names": "other/{}.png"}, "others, such as"),
        ({"images": 59}, "expected the 60 images"),
        ({"classes": ("red", "blue", "grey")}, "expected the classes"),
        ({"sets": ("test", "noise")}, "expected the sets"),
        ({"seed": 1}, "expected another seed of LoRA, rank 20, got 1 as in"),
        ({"seed": 1, "names": "other/{}.png"}, "others, such as"),
        ({"revision": "sha256:first"}, "got the same revision"),
    ],
)
def test_a_run_that_saw_other_pictures_or_is_the_same_is_named(
    tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    first = finished_run(tmp_path / "first", 1)
    revision = changes.pop("revision", None)
    other = finished_run(tmp_path / "other", **({"seed": 0} | changes))
    if revision is not None:
        path = other / "report" / "report.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"revision": revision}))
    message = refusal("compare", first, other, "--out", tmp_path / "out")
    assert "other: expected" in message
    assert expected in message
    assert not (tmp_path / "out").exists()


def test_unusable_runs_and_options_are_refused(tmp_path: Path) -> None:
    first, second = (finished_run(tmp_path / name, seed) for seed, name in enumerate("ab"))
    assert "expected one of the runs" in refusal("compare", first, second, "--reference", tmp_path)
    assert "got f1" in refusal("compare", first, second, "--metric", "f1")
    (second / "report" / "predictions.csv.gz").write_bytes(b"no gzip")
    assert "b/report/predictions.csv.gz: expected" in refusal("compare", first, second)
    (second / "report" / "predictions.csv.gz").unlink()
    assert "b/report/predictions.csv.gz: expected" in refusal("compare", first, second)
    (second / "report" / "report.json").unlink()
    assert "`eulerlora evaluate --out`" in refusal("compare", first, second)
    (second / "report").rmdir()
    (second / "config.json").write_text("{}")
    command = f"`eulerlora evaluate {second} --data DIR --out {second}/report`"
    assert command in refusal("compare", first, second)
