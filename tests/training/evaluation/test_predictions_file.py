"""Every figure of a report can be computed again from its predictions file."""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss, roc_auc_score

from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.model import EulerLoRA
from eulerlora.scores.feature_distance import FeatureDistance, FeatureStatistics
from eulerlora.scores.ood_scores import SCORES
from eulerlora_client.contract.answers import ClassName, ScoreThreshold
from training.data.images import ImageParts, LabelledImage, list_images
from training.evaluation.evaluate import Evaluation, evaluate
from training.evaluation.inference import SamplingOptions, predict_all
from training.evaluation.predictions_file import predictions_csv
from training.evaluation.report_schema import TEST, ModeReport
from training.metrics.intervals import Estimates
from training.ood.corruptions import CORRUPTIONS
from training.ood.sets import ood_sources, read_ood_sets

OPTIONS = [SamplingOptions("det"), SamplingOptions("stoch", 4)]
Rows = list[dict[str, str]]


def model_with_all_scores(folder: Path, images: list[LabelledImage]) -> EulerLoRA:
    """Returns the checkpoint with thresholds near the middle of each score of the images."""
    model = EulerLoRA.load(folder)
    (output,) = predict_all(model, images, OPTIONS[:1], "scores")
    features = output.features.mean(dim=(1, 2))
    width = features.shape[1]
    distance = FeatureDistance(FeatureStatistics(features[:3], torch.eye(width) / width))
    values = output.scores(distance)
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
def evaluation(checkpoint_folder: Path, image_folder: Path) -> Evaluation:
    """Returns an evaluation with one folder, one generated set and the corruptions."""
    test = [
        LabelledImage(name, source, index % 3, f"lesion {index // 2}", {"kind": "ab"[index % 2]})
        for index, (name, source) in enumerate(list_images(image_folder / "test").items())
    ]
    model = model_with_all_scores(checkpoint_folder, test)
    classes = tuple(ClassName(name=name, description=name) for name in model.classes)
    arguments = [f"near:{image_folder / 'other'}", "colour-inverted"]
    ood = read_ood_sets(ood_sources(arguments), test)
    return evaluate(model, ImageParts("squares", classes, {"test": test}), ood, OPTIONS, None, 4)


@pytest.fixture(scope="module")
def rows(evaluation: Evaluation) -> Rows:
    text = gzip.decompress(predictions_csv(evaluation)).decode()
    return list(csv.DictReader(StringIO(text)))


@dataclass(frozen=True)
class Part:
    """The rows of one set in one mode."""

    rows: Rows

    def column(self, name: str) -> np.ndarray:
        return np.array([float(row[name]) for row in self.rows])

    @property
    def labels(self) -> list[str]:
        return [row["label"] for row in self.rows]

    @property
    def probabilities(self) -> np.ndarray:
        names = [name for name in self.rows[0] if name.startswith("p_")]
        return np.stack([self.column(name) for name in names], axis=1)


def part(rows: Rows, name: str, mode: ModeReport) -> Part:
    chosen = [row for row in rows if (row["set"], row["mode"]) == (name, mode.mode)]
    return Part(chosen)


def value(estimates: Estimates, name: str) -> float:
    estimate = estimates[name]
    assert estimate is not None
    return estimate.value


def modes(evaluation: Evaluation) -> Iterator[ModeReport]:
    assert [mode.title for mode in evaluation.report.modes] == ["det", "stoch, 4 samples"]
    yield from evaluation.report.modes


def test_there_is_one_row_for_each_image_set_and_mode(evaluation: Evaluation, rows: Rows) -> None:
    keys = [(row["set"], row["name"], row["mode"]) for row in rows]
    assert len(set(keys)) == len(keys) == 2 * (18 + 5 + 18 + 4 * len(CORRUPTIONS))
    groups = {row["set"]: row["group"] for row in rows}
    assert groups == {"test": "test", "other": "near", "colour-inverted": "shifted"} | {
        corruption.name: "corrupted" for corruption in CORRUPTIONS
    }
    assert {row["samples"] for row in rows if row["mode"] == "stoch"} == {"4"}
    assert {row["label"] for row in rows if row["set"] == "other"} == {""}
    assert "" not in {row["label"] for row in rows if row["set"] != "other"}
    assert rows[0]["cluster"] == "lesion 0"
    assert {row["test_kind"] for row in rows if row["set"] == "other"} == {""}


def test_figures_of_the_test_part_follow_from_the_rows(evaluation: Evaluation, rows: Rows) -> None:
    classes = list(evaluation.classes)
    for mode in modes(evaluation):
        test = part(rows, TEST, mode)
        predicted = [classes[index] for index in test.probabilities.argmax(axis=1)]
        assert value(mode.metrics, "accuracy") == pytest.approx(
            accuracy_score(test.labels, predicted)
        )
        assert value(mode.metrics, "macro_f1") == pytest.approx(
            f1_score(test.labels, predicted, average="macro", zero_division=0)
        )
        order = [sorted(classes).index(name) for name in sorted(classes)]
        assert order == list(range(len(classes))) == [0, 1, 2]
        assert classes == sorted(classes)  # scikit-learn expects sorted classes
        assert value(mode.metrics, "nll") == pytest.approx(
            log_loss(test.labels, test.probabilities)
        )
        assert value(mode.metrics, "macro_auroc") == pytest.approx(
            roc_auc_score(test.labels, test.probabilities, multi_class="ovr")
        )
        wrong = np.array(predicted) != np.array(test.labels)
        for score, sign in (("msp", -1), ("entropy", 1), ("mutual_information", 1)):
            assert value(mode.error_ranking[score], "auroc") == pytest.approx(
                roc_auc_score(wrong, sign * test.column(score))
            )


def test_ood_metrics_and_flagged_shares_follow_from_the_rows(
    evaluation: Evaluation, rows: Rows
) -> None:
    for mode in modes(evaluation):
        test = part(rows, TEST, mode)
        for name in ("other", "colour-inverted"):
            outside = part(rows, name, mode)
            is_test = np.arange(len(test.rows) + len(outside.rows)) < len(test.rows)
            for score in SCORES:
                values = np.concatenate([test.column(score), outside.column(score)])
                results = mode.ood[name].scores[score]
                expected = roc_auc_score(is_test if score == "msp" else ~is_test, values)
                assert value(results.metrics, "auroc") == pytest.approx(expected)
                flagged = outside.column(f"flagged_{score}")
                threshold = mode.thresholds[score]
                below, above = outside.column(score) < threshold, outside.column(score) > threshold
                assert flagged.tolist() == (below if score == "msp" else above).tolist()
                assert results.flagged is not None
                assert results.flagged.hits == flagged.sum()
        for score in SCORES:
            shares = test.column(f"flagged_{score}")
            share = mode.flagged[score]
            assert share is not None
            assert share.share == pytest.approx(shares.mean())
        assert 0 < test.column("flagged_feature_distance").mean() < 1


def test_the_accuracy_of_shifted_sets_and_corruptions_follows_from_the_rows(
    evaluation: Evaluation, rows: Rows
) -> None:
    for mode in modes(evaluation):
        for name in ("colour-inverted", CORRUPTIONS[0].name):
            shifted = part(rows, name, mode)
            predicted = np.array(evaluation.classes)[shifted.probabilities.argmax(axis=1)]
            expected = accuracy_score(shifted.labels, predicted)
            if name in mode.corruptions:
                assert value(mode.corruptions[name], "accuracy") == pytest.approx(expected)
            else:
                share = mode.ood[name].accuracy
                assert share is not None
                assert share.share == pytest.approx(expected)
        assert mode.ood["other"].accuracy is None


def test_the_difference_between_modes_follows_from_rows_of_equal_images(
    evaluation: Evaluation, rows: Rows
) -> None:
    det, stoch = modes(evaluation)
    nll = []
    for mode in (stoch, det):
        test = part(rows, TEST, mode)
        nll.append(log_loss(test.labels, test.probabilities))
    assert value(stoch.difference, "nll") == pytest.approx(nll[0] - nll[1])
    assert det.difference == {}


def test_equal_predictions_give_equal_bytes_and_scores_that_do_not_exist_are_empty(
    evaluation: Evaluation,
) -> None:
    assert predictions_csv(evaluation) == predictions_csv(evaluation)
    test = evaluation.sets.test
    plain = [
        replace(mode, scores={"msp": replace(mode.scores["msp"], threshold=None, flagged=None)})
        for mode in test.predictions
    ]
    sets = replace(evaluation.sets, test=replace(test, predictions=plain), ood={}, corrupted={})
    content = gzip.decompress(predictions_csv(replace(evaluation, sets=sets))).decode()
    for row in csv.DictReader(StringIO(content)):
        assert row["msp"]
        empty = ("energy", "feature_distance", "flagged_msp", "flagged_feature_distance")
        assert [row[name] for name in empty] == ["", "", "", ""]
