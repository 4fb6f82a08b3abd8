"""Markdown, JSON and files of a report.

The table of prediction sets in a report.

Every figure of a report can be computed again from its predictions file.
"""

import csv
import gzip
import json
import re
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from sklearn.metrics import log_loss, roc_auc_score

from eulerlora import EulerLoRA
from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.scores.ood_scores import FeatureDistance, FeatureStatistics
from eulerlora_contract.checkpoints import ScoreThreshold
from eulerlora_contract.errors import DataError
from eulerlora_contract.sampling import Options
from tests.markdown import code_blocks
from tests.training.evaluation.test_evaluate import dataset, labelled, value
from tests.training.synthetic_report import (
    MODES,
    REPORT,
    estimate,
    of_class,
    report,
    report_json,
    synthetic_evaluation,
)
from training.data.images import LabelledImage, OodSet
from training.evaluation.evaluate import Evaluation, evaluate
from training.evaluation.inference import predict_all
from training.evaluation.ood_sets import ood_sources, read_ood_sets
from training.evaluation.report_schema import read_report
from training.reporting.charts import write_figure
from training.reporting.report import markdown, write_report

SETS = {
    "coverage": 0.9, "always_included": ("red",), "mean_size": 2.75,
    "classes": {
        "red": {
            "units": {
                "hits": 18, "images": 20, "clusters": 20, "share": 0.9, "low": 0.5, "high": 0.95
            },
            "mean_size": 2.5,
        }
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    """REPORT with predictions for charts and table, which are unrelated to its metrics."""
    return synthetic_evaluation(REPORT)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, evaluation: Evaluation) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(folder, evaluation)
    return folder


def test_the_tables_have_intervals_and_counts_of_every_mode_class_group_and_set() -> None:
    sets = {"prediction_sets": [SETS, SETS | {"coverage": 0.95}]}
    text = markdown(report(modes=[mode | sets for mode in MODES]))
    for line in (
        "squares, test part: 1,234 images of 800 lesions",
        "|  | det | stoch, 4 samples |",
        "| accuracy | 0.510 [0.460, 0.560] | 0.540 [0.490, 0.590] |",
        "| macro-AUROC | n/a | n/a |",
        "| OOD threshold, MSP | 0.600 | n/a |",
        "| flagged by MSP | 0.049 [0.038, 0.063] (61/1,234) | n/a |",
        "1,000 resamples of the lesions",
        "| red | 12 | 12 | 0.250 [0.055, 0.572] (3/12) | 0.900 [0.555, 0.997] (9/10) "
        "| 0.750 [0.194, 0.994] (3/4) |",
        "| blue | 0 | 0 | n/a | n/a | n/a |",
        "| red | 20 | 0.900 [0.500, 0.950] (18/20) always | 2.50 "
        "| 0.900 [0.500, 0.950] (18/20) always | 2.50 |",
        "| all images |  |  | 2.75 |  | 2.75 |",
        "sensitivity, red",
        "| large | 900 | 700 | 0.500 [0.450, 0.550] | 0.100 [0.050, 0.150] |",
        "| small (too few) | 49 | 40 |",
        "| rare (too few) | 500 | 400 |",
        "| other | far | 2,000 of 10,000 | 7 of these images; everyday photographs |",
        "| close | near | 30 |  |",
        "The figures of other are in-family figures",
        "|  | flagged by MSP | flagged by feature distance | accuracy |",
        "| haze | 0.400 [0.122, 0.738] (4/10) | 0.800 [0.444, 0.975] (8/10) | 0.450 [0.231, 0.685] "
        "(9/20) |",
        "| other | 0.500 [0.450, 0.550] | 0.600 [0.550, 0.650] | 0.900 [",
    ):
        assert line in text
    assert "threshold, energy" not in text
    assert "flagged by" not in text.split("<summary>Mode stoch, 4 samples</summary>")[-1]
    det = text.split("## Out-of-distribution images")[1].split("<summary>Mode stoch")[0]
    for metric in ("AUROC", "FPR at 95% TPR"):
        (table,) = (part for part in det.split("\n\n") if part.startswith(f"| {metric} |"))
        names = [line.split(" ")[1] for line in table.splitlines() if "[" in line]
        assert names == ["other", "close", "haze"]  # far, near, shifted
    assert "Out-of-distribution" not in markdown(replace(REPORT, ood_sets={}))


def test_a_mode_is_compared_with_the_first_one_on_the_same_images() -> None:
    text = markdown(REPORT)
    assert "higher NLL" in text
    assert "NLL (nats) +0.0030 [+0.0010, +0.0050], accuracy -0.0020 [-0.0040, +0.0010] and" in text
    det, stoch = MODES
    equal = {"difference": stoch["difference"] | {"nll": estimate(0.1, -0.1, 0.2)}}
    text = markdown(report(modes=[det, stoch | equal]))
    assert "higher NLL" not in text
    assert "lower NLL" not in text
    assert "less those" not in markdown(report(modes=[det]))
    untested = {"difference": stoch["difference"] | {"nll": estimate(0.1)}}
    for clusters, reason in ((19, "fewer than 20 groups"), (20, "the same in all resamples")):
        text = markdown(report(modes=[det, stoch | untested], clusters=clusters))
        assert f"is not tested against mode det: {reason}" in text.replace("the difference is ", "")
        assert "No difference" not in text


def test_without_target_classes_groups_have_no_sensitivity() -> None:
    text = markdown(replace(REPORT, target=()))
    assert "sensitivity," not in text
    assert "macro-AUROC | flagged" in text
    assert "rare (too few)" not in text


def test_all_rows_of_a_table_have_the_same_number_of_cells() -> None:
    tables = [part for part in markdown(REPORT).split("\n\n") if part.startswith("|")]
    assert len(tables) == 1 + 1 + 2 + 2 + (1 + 3 + 3)
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_vertical_bar_in_a_name_is_escaped() -> None:
    modes = [mode | {"classes": {"a|b": of_class(None)}} for mode in MODES]
    assert r"| a\|b | 0 | 0 | n/a | n/a | n/a |" in markdown(report(modes=modes))


def test_a_written_report_can_be_read(written: Path) -> None:
    json.loads((written / "report.json").read_text(), parse_constant=pytest.fail)  # no NaN
    stored = read_report(written)
    assert report_json(stored) == report_json(REPORT)
    assert markdown(stored) == markdown(REPORT)


def test_a_missing_or_invalid_report_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"report\.json"):
        read_report(tmp_path)
    (tmp_path / "report.json").write_text('{"model": "tiny"}')
    with pytest.raises(DataError, match=r"report\.json: missing key method"):
        read_report(tmp_path)


def test_the_markdown_file_shows_all_results_and_charts(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert text.startswith("# tiny (LoRA, rank 20) on squares, test part\n")
    assert markdown(REPORT).strip() in text
    shown = set(re.findall(r"!\[.+\]\((.+)\)", text))
    assert shown == {path.name for path in written.iterdir()} - {
        "report.md",
        "report.json",
        "results.csv",
        "predictions.csv.gz",
    }
    assert len(shown) == 11
    assert "1,234 images of 800 lesions (red 12, blue 0)" in text


def test_the_table_of_all_results_has_a_row_for_each_figure(written: Path) -> None:
    with (written / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    by_key = {(row["mode"], row["part"], row["name"], row["metric"]): row for row in rows}
    assert len(by_key) == len(rows)
    for key, wanted in {
        ("det", "test part", "", "accuracy"): ("0.51", "0.46", "0.56", "", "", ""),
        ("det", "test part", "", "macro_auroc"): ("", "", "", "", "", ""),
        ("det", "test part", "threshold", "msp"): ("0.6", "", "", "", "", ""),
        ("stoch", "less det", "", "nll"): ("0.003", "0.001", "0.005", "", "", ""),
        ("det", "class", "red", "predictive_value"): ("0.75", "0.19412", "0.993691", "3", "4", "4"),
        ("det", "size", "rare", "target"): ("9", "", "", "", "", ""),
        ("det", "far", "other", "msp_flagged"): ("0.4", "0.121552", "0.737622", "4", "10", "10"),
        ("stoch", "shifted", "haze", "energy_auroc"): ("0.6", "0.55", "0.65", "", "", ""),
    }.items():
        columns = ("value", "low", "high", "hits", "images", "clusters")
        assert tuple(by_key[key][name] for name in columns) == wanted


def test_figures_and_pictures_are_added_to_the_charts(
    tmp_path: Path, evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn_as_svg(figure: Figure, path: Path) -> None:
        if path.suffix == ".svg":
            write_figure(figure, path)
        else:
            path.touch()

    monkeypatch.setattr("training.reporting.report.write_figure", drawn_as_svg)
    write_report(tmp_path, evaluation, figures=("svg", "pdf"), pictures=True)
    names = {path.name for path in tmp_path.iterdir()}
    charts = {name.removesuffix(".png") for name in names if name.endswith(".png")}
    assert {"uncertain-images", "wrong-images", "learning-curves"} < charts
    for suffix in ("svg", "pdf"):
        of_suffix = {name for name in names if name.endswith(suffix)}
        assert of_suffix == {f"{chart}.{suffix}" for chart in charts}
    text = (tmp_path / "report.md").read_text()
    # of three images, whose labels are red, red, blue and whose answers red, blue, red
    assert "3 of 3 test images, those of highest entropy" in text
    assert "2 of 2 wrong labels, those of highest MSP" in text
    shown = (tmp_path / "wrong-images.svg").read_text()
    assert shown.index("test/1") < shown.index("test/2")
    assert "test/0" not in shown


def test_data_that_show_no_lesions_have_groups_or_images() -> None:
    modes = [mode | {"prediction_sets": [SETS]} for mode in MODES]
    groups = report(unit="group", units=900, sampled="group", modes=modes)
    pictures = replace(groups, unit="picture", units=1234, sampled="picture", clusters=1234)
    for shown, unit, sampled in ((groups, "group", "group"), (pictures, "picture", "image")):
        text = markdown(shown)
        assert "lesion" not in text
        assert f"1,000 resamples of the {sampled}s" in text
        assert f"| class | {unit}s | covered" in text
        assert ("1,234 images of 800 groups" in text) == (unit == "group")
    lesions = replace(groups, unit="lesion")
    assert "1,234 images of 900 lesions of 800 groups" in markdown(lesions)
    assert "| class | lesions | covered" in markdown(lesions)


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "evaluate.md"
Rows = list[dict[str, str]]


def model_with_all_scores(folder: Path, images: list[LabelledImage]) -> EulerLoRA:
    """Has thresholds near the middle of each score of the images."""
    model = EulerLoRA.load(folder)
    (output,) = predict_all(model, images, [model.options()], "scores")
    features = output.features.mean(dim=(1, 2))
    width = features.shape[1]
    distance = FeatureDistance(FeatureStatistics(features[:3], torch.eye(width) / width))
    scores = Predictions.of(output, distance).ood_scores
    values = {name: score.value for name, score in scores.items()}
    others = {
        name: ScoreThreshold(threshold=float(values[name].median()), kept=0.5, upper_quartile=0.0)
        for name in ("energy", "feature_distance")
    }
    checkpoint = load_checkpoint(folder)
    thresholds = tuple(
        threshold.model_copy(update={"msp": float(values["msp"].median())} | others)
        for threshold in checkpoint.config.thresholds
    )
    config = checkpoint.config.model_copy(update={"thresholds": thresholds})
    calibrated = replace(checkpoint, config=config, feature_distance=distance)
    return EulerLoRA(calibrated, torch.device("cpu"))


@pytest.fixture(scope="module")
def predicted(checkpoint_folder: Path, image_folder: Path) -> Evaluation:
    """With one folder and one generated set."""
    test = labelled(image_folder / "test", [0, 1, 2])
    model = model_with_all_scores(checkpoint_folder, test)
    inverted = [replace(image, source=255 - image.pixels()) for image in test]
    ood = read_ood_sets(ood_sources([f"near:{image_folder / 'other'}"]), test)
    ood.append(OodSet("colour-inverted", inverted, {}, "shifted", generated=True))
    options = [model.options(), model.options("stoch", 4)]
    return evaluate(model, dataset(model, test), ood, options)


def predictions_file(evaluation: Evaluation, folder: Path) -> bytes:
    """The file of predictions in a report without charts."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.reporting.report.chart_files", lambda *_: ())
        write_report(folder, evaluation)
    return (folder / "predictions.csv.gz").read_bytes()


def rows_of(content: bytes) -> Rows:
    return list(csv.DictReader(StringIO(gzip.decompress(content).decode())))


@pytest.fixture(scope="module")
def csv_rows(predicted: Evaluation, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return rows_of(predictions_file(predicted, tmp_path_factory.mktemp("rows") / "report"))


def test_there_is_one_row_for_each_image_set_and_mode(
    predicted: Evaluation, csv_rows: Rows
) -> None:
    keys = [(row["set"], row["name"], row["mode"]) for row in csv_rows]
    assert len(set(keys)) == len(keys) == 2 * (18 + 5 + 18)
    groups = {row["set"]: row["group"] for row in csv_rows}
    assert groups == {"test": "test", "other": "near", "colour-inverted": "shifted"}
    assert {row["samples"] for row in csv_rows if row["mode"] == "stoch"} == {"4"}
    assert {row["label"] for row in csv_rows if row["set"] == "other"} == {""}
    assert "" not in {row["label"] for row in csv_rows if row["set"] != "other"}
    assert csv_rows[0]["cluster"] == "0"
    assert {row["test_kind"] for row in csv_rows if row["set"] == "other"} == {""}


def test_rows_state_the_whole_options_of_their_prediction(
    evaluation: Evaluation, tmp_path: Path
) -> None:
    options = [Options("det", 1, "independent", 8, "bfloat16"),
               Options("stoch", 2, "balanced", 4, "bfloat16")]  # fmt: skip
    modes = [
        replace(of_mode, options=choice)
        for of_mode, choice in zip(REPORT.modes, options, strict=True)
    ]
    report = replace(REPORT, modes=modes)
    predictions = rows_of(predictions_file(replace(evaluation, report=report), tmp_path / "report"))
    results = list(csv.DictReader(StringIO((tmp_path / "report" / "results.csv").read_text())))
    for rows in (predictions, results):
        stated = [{name: row[name] for name in asdict(options[0])} for row in rows]
        assert [dict(one) for one in dict.fromkeys(tuple(s.items()) for s in stated)] == [
            {name: str(value) for name, value in asdict(choice).items()} for choice in options
        ]
    assert read_report(tmp_path / "report").modes[1].options == options[1]


def test_every_column_is_described(csv_rows: Rows) -> None:
    table = PAGE.read_text().split("| column | content |")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    described = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    kinds = {"p_": "p_CLASS", "flagged_": "flagged_SCORE", "test_": "test_ATTRIBUTE"}
    columns = [
        next((kind for start, kind in kinds.items() if name.startswith(start)), name)
        for name in csv_rows[0]
    ]
    assert described == list(dict.fromkeys(columns))


def test_figures_follow_from_the_rows(predicted: Evaluation, csv_rows: Rows) -> None:
    classes = list(predicted.classes)
    assert classes == sorted(classes)  # scikit-learn expects sorted classes
    for mode in predicted.report.modes:

        def column(of_set: str, name: str, mode=mode) -> np.ndarray:
            shown = [
                row for row in csv_rows if (row["set"], row["mode"]) == (of_set, mode.options.mode)
            ]
            return np.array([row[name] if name == "label" else float(row[name]) for row in shown])

        true = column("test", "label")
        probabilities = np.stack([column("test", f"p_{name}") for name in classes], axis=1)
        wrong = np.array(classes)[probabilities.argmax(axis=1)] != true
        assert value(mode.metrics, "accuracy") == pytest.approx(1 - wrong.mean())
        assert value(mode.metrics, "nll") == pytest.approx(log_loss(true, probabilities))
        for score, sign in (("msp", -1), ("entropy", 1), ("mutual_information", 1)):
            assert value(mode.error_ranking[score], "auroc") == pytest.approx(
                roc_auc_score(wrong, sign * column("test", score))
            )
        for score in ("msp", "energy", "feature_distance"):
            share = mode.flagged[score]
            assert share.hits == column("test", f"flagged_{score}").sum()
            for name in ("other", "colour-inverted"):
                inside, outside = column("test", score), column(name, score)
                results, sign = mode.ood[name].scores[score], 1 if score == "msp" else -1
                is_test = np.arange(len(inside) + len(outside)) < len(inside)
                expected = roc_auc_score(is_test, sign * np.concatenate([inside, outside]))
                assert value(results.metrics, "auroc") == pytest.approx(expected)
                flagged = sign * outside < sign * mode.thresholds[score]
                assert column(name, f"flagged_{score}").tolist() == flagged.tolist()
                assert results.flagged.hits == flagged.sum()


def test_the_documented_example_computes_the_figures_of_the_report(
    predicted: Evaluation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    predictions_file(predicted, tmp_path / "report")
    monkeypatch.chdir(tmp_path)
    (code,) = [b.code for b in code_blocks(PAGE.read_text()) if b.language == "python"]
    exec(compile(code, PAGE.name, "exec"), {})
    accuracy, *lines = capsys.readouterr().out.splitlines()
    stoch = predicted.report.modes[1]
    assert float(accuracy) == pytest.approx(value(stoch.metrics, "accuracy"))
    expected = {}
    for name, by_score in stoch.ood.items():
        results = by_score.scores["feature_distance"]
        expected[name] = (results.flagged.share, value(results.metrics, "auroc"))
    actual = {name: (float(a), float(b)) for name, a, b in map(str.split, lines)}
    assert actual.keys() == expected.keys()
    for name, figures in expected.items():
        assert actual[name] == pytest.approx(figures)


def test_equal_predictions_give_equal_bytes_and_scores_that_do_not_exist_are_empty(
    predicted: Evaluation, tmp_path: Path
) -> None:
    first, second = (predictions_file(predicted, tmp_path / name) for name in "ab")
    assert first == second
    test = predicted.test
    plain = [
        replace(
            mode,
            ood_scores={"msp": replace(mode.ood_scores["msp"], threshold=None, flagged=None)},
        )
        for mode in test.predictions
    ]
    changed = replace(predicted, test=replace(test, predictions=plain), ood={})
    for row in rows_of(predictions_file(changed, tmp_path / "changed")):
        assert row["msp"]
        empty = ("energy", "feature_distance", "flagged_msp", "flagged_feature_distance")
        assert [row[name] for name in empty] == ["", "", "", ""]
