"""Loading: known answers, shared backbones, newer revisions, the loading thread, health checks."""

import asyncio
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from torch import Tensor

from eulerlora import EulerLoRA
from eulerlora.checkpoint.files import (
    DEFAULT_CHECKPOINT,
    predict_known_answer,
    read_config,
    save_checkpoint,
    stored_revision,
)
from eulerlora.checkpoint.signature import sign, verifier
from eulerlora.nn.method import RowDraws
from eulerlora.nn.network import NetworkOutput
from eulerlora.nn.rows import Rows
from eulerlora.nn.runtime import Runtime
from eulerlora_contract.errors import CheckpointError, SettingsError
from eulerlora_contract.problems import OutOfMemory
from eulerlora_contract.sampling import PRECISIONS
from service.inference.engine import InferenceItem, ServedModel
from service.lifecycle.loading import CheckedModel, CheckpointSource
from tests.checkpoint_files import write_config
from tests.conftest import needs_openvino, predict_rows
from tests.damaged_checkpoints import DAMAGES
from tests.fake_hub import COMMIT, NAME, fake_hub
from tests.service.conftest import app_of
from tests.signing_keys import write_keys

pytestmark = pytest.mark.anyio

TIMEOUT_S = 120
Save = Callable[..., Path]


def load(
    source: Path | CheckpointSource, others: Iterable[EulerLoRA], **options: Any
) -> CheckedModel:
    chosen = CheckpointSource(source) if isinstance(source, Path) else source
    checked = chosen.load(others, **options)
    checked.log_choices()
    return checked


@pytest.fixture
def save(make_network, make_config, make_backbone, tmp_path: Path) -> Save:
    """Writes a checkpoint: (name, adapter seed, backbone seed) -> its folder."""

    def checkpoint(
        name: str, seed: int, backbone_seed: int = 0, folder: str = "", **changes: object
    ) -> Path:
        network = make_network(seed=seed, backbone=make_backbone(seed=backbone_seed))
        path = tmp_path / (folder or name)
        save_checkpoint(path, network, make_config(network, name=name, **changes), "# card\n")
        return path

    return checkpoint


def frozen_weights(model: EulerLoRA) -> list[torch.nn.Parameter]:
    return list(model.network.backbone.parameters())


def gives_known_answer(checked: CheckedModel) -> bool:
    config = checked.model.config
    answers = predict_known_answer(
        checked.model.runtime, checked.known.pixels, checked.known.draws, config.temperatures
    )
    return checked.known.fault(answers, checked.model.precision) is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_checkpoints_with_the_same_backbone_share_its_weights(save: Save, precision) -> None:
    first = load(save("first", seed=1), (), precision=precision)
    alone = load(save("second", seed=2), (), precision=precision)
    shared = load(alone.source, [first.model], precision=precision)
    pairs = list(
        zip(
            frozen_weights(first.model),
            frozen_weights(shared.model),
            frozen_weights(alone.model),
            strict=True,
        )
    )
    for one, other, separate in pairs:
        assert one.data_ptr() == other.data_ptr() != separate.data_ptr()
        assert torch.equal(one, separate)
        assert one.dtype == separate.dtype
    assert (torch.bfloat16 in {one.dtype for one, _, _ in pairs}) == (precision == "bfloat16")
    for model in (shared, alone):
        assert gives_known_answer(model)
    assert torch.equal(
        *(
            predict_known_answer(checked.model.runtime, checked.known.pixels)[1]
            for checked in (shared, alone)
        )
    )
    assert gives_known_answer(first)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_embedded_checkpoint_gives_its_known_answer(precision) -> None:
    embedded = load(DEFAULT_CHECKPOINT, (), precision=precision)
    assert gives_known_answer(embedded)


def test_a_model_is_served_in_the_requested_precision(
    save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    exact = load(save("first", seed=1), ())
    with caplog.at_level("INFO"):
        rounded = load(save("second", seed=2), [exact.model], precision="bfloat16")
    assert rounded.model.precision == "bfloat16"
    reason = rounded.model.precision_reason
    assert f"model second: precision bfloat16: {reason}" in caplog.text
    pointers = {weight.data_ptr() for weight in frozen_weights(exact.model)}
    assert pointers.isdisjoint(weight.data_ptr() for weight in frozen_weights(rounded.model))
    details = TestClient(app_of(rounded.served)).get("/models/second").json()
    assert (details["precision"], details["precision_reason"]) == ("bfloat16", reason)


@needs_openvino
def test_a_model_is_served_by_the_requested_runtime(
    save: Save, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save("first", seed=1)
    with caplog.at_level("INFO"):
        served = load(folder, (), runtime="openvino")
    assert gives_known_answer(served)
    assert served.model.revision == load(folder, ()).model.revision
    assert "model first: runtime openvino: set by the user" in caplog.text
    assert served.model.runtime.name == "openvino"


@needs_openvino
def test_models_in_different_runtimes_share_no_weights(save: Save) -> None:
    first = load(save("first", seed=1), (), runtime="openvino")
    second = load(save("second", seed=2), [first.model])
    third = load(save("third", seed=3), [second.model], runtime="openvino")
    for loaded in (first, second, third):
        assert gives_known_answer(loaded)


@needs_openvino
def test_the_known_answer_is_that_of_the_chosen_runtime(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = Runtime.outputs

    def wrong(runtime: Runtime, images: Tensor, rows: Rows, draws: RowDraws) -> NetworkOutput:
        output = outputs(runtime, images, rows, draws)
        if runtime.name == "torch":
            return output
        return output._replace(logits=-output.logits)

    monkeypatch.setattr(Runtime, "outputs", wrong)
    folder = save("first", seed=1)
    load(folder, ())
    with pytest.raises(CheckpointError, match="known answer"):
        load(folder, (), runtime="openvino")


def test_thresholds_of_another_precision_are_a_warning_in_the_log(
    checkpoint_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for precision in PRECISIONS:
        caplog.clear()
        with caplog.at_level("WARNING"):
            load(checkpoint_folder, (), precision=precision)
        assert ("were fitted in float32" in caplog.text) == (precision == "bfloat16")


def test_a_model_shares_weights_with_the_model_that_has_its_backbone(save: Save) -> None:
    others = [load(save(f"b{seed}", seed=1, backbone_seed=seed), ()).model for seed in (3, 4)]
    model = load(save("new", seed=2, backbone_seed=4), others).model
    pointers = [frozen_weights(loaded)[0].data_ptr() for loaded in (*others, model)]
    assert pointers[0] != pointers[1] == pointers[2]


@pytest.mark.parametrize("damage", ["no known answer", "a wrong known answer"])
def test_a_checkpoint_with_another_known_answer_is_refused_with_its_file(
    checkpoint_copy: Path, damage: str
) -> None:
    file, _, apply = DAMAGES[damage]
    apply(checkpoint_copy)
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint_copy, ())
    assert caught.value.path == checkpoint_copy / file


@pytest.mark.parametrize("damage", ["other adapters", "another backbone"])
def test_damaged_weights_are_refused_even_if_the_config_is_unchanged(
    checkpoint_copy: Path, damage: str
) -> None:
    current = load(checkpoint_copy, ())
    file, _, apply = DAMAGES[damage]
    apply(checkpoint_copy)
    with pytest.raises(CheckpointError) as caught:
        current.newer_revision(load, [current.model])
    assert caught.value.path == checkpoint_copy / file


def test_a_changed_config_is_a_newer_revision_with_the_same_weights(checkpoint_copy: Path) -> None:
    current = load(checkpoint_copy, ())
    config = read_config(checkpoint_copy).model_copy(update={"thresholds": ()})
    write_config(checkpoint_copy, config)
    newer = current.newer_revision(load, [current.model])
    assert newer is not None
    assert newer.model.revision != current.model.revision
    assert newer.model.config.thresholds == ()
    assert frozen_weights(newer.model)[0].data_ptr() == frozen_weights(current.model)[0].data_ptr()


def test_the_signature_is_checked_before_anything_is_read_and_at_a_reload(
    checkpoint_copy: Path, tmp_path: Path
) -> None:
    keys = write_keys(tmp_path)
    verified = partial(load, verify=verifier(keys.public))
    sign(checkpoint_copy, keys.private)
    current = verified(checkpoint_copy, ())
    (checkpoint_copy / "config.json").write_text("{}")
    for refused in (
        lambda: verified(checkpoint_copy, ()),
        lambda: current.newer_revision(verified, [current.model]),
    ):
        with pytest.raises(CheckpointError) as caught:
            refused()
        assert caught.value.path == checkpoint_copy / "model.sig"


def test_a_link_that_moves_during_a_load_does_not_change_what_is_read(
    save: Save, tmp_path: Path
) -> None:
    first, second, link = (
        save("model", seed=1),
        save("model", 2, folder="second"),
        tmp_path / "link",
    )
    link.symlink_to(first)

    def verify_and_move(folder: Path) -> None:
        assert folder == first
        link.unlink()
        link.symlink_to(second)

    loaded = load(link, (), verify=verify_and_move)
    assert loaded.model.revision == stored_revision(first)
    newer = loaded.newer_revision(load, ())
    assert newer is not None
    assert newer.model.revision == stored_revision(second)


def test_a_model_with_another_name_is_not_a_newer_revision(save: Save) -> None:
    current = load(save("model", seed=1), ())
    named = load(CheckpointSource(current.source.folder, "given"), ())
    shutil.rmtree(current.source.folder)
    save("other", seed=2, folder="model")
    with pytest.raises(CheckpointError) as caught:
        current.newer_revision(load, ())
    assert caught.value.path == current.source.folder / "config.json"
    newer = named.newer_revision(load, ())
    assert newer is not None
    assert (newer.served.name, newer.model.config.name) == ("given", "other")


def test_a_model_with_other_classes_is_not_a_newer_revision(save: Save) -> None:
    current = load(save("model", seed=1), ())
    classes = [{"name": one, "description": one} for one in reversed(current.model.classes)]
    shutil.rmtree(current.source.folder)
    save("model", seed=2, classes=classes)
    with pytest.raises(CheckpointError) as caught:
        current.newer_revision(load, ())
    assert caught.value.path == current.source.folder / "config.json"


def test_a_repository_of_the_hub_is_served_at_its_commit(
    checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_hub(checkpoint_folder, monkeypatch, tmp_path / "cache"):
        source = CheckpointSource.of(f"tiny.2=hf://{NAME}@main")
    (listed,) = TestClient(app_of(load(source, ()).served)).get("/models").json()["models"]
    assert (listed["name"], listed["source"]) == ("tiny.2", f"hf://{NAME}@{COMMIT}")
    assert load(checkpoint_folder, ()).served.source is None


@pytest.mark.parametrize(
    ("text", "name", "folder"),
    [
        ("runs/1", None, "runs/1"),
        ("first=runs/1", "first", "runs/1"),
        ("v1.2_b-c=a=b", "v1.2_b-c", "a=b"),
        ("default", None, str(DEFAULT_CHECKPOINT)),
        ("first=default", "first", str(DEFAULT_CHECKPOINT)),
        ("./default", None, "default"),
        ("lr=0.1", None, "lr=0.1"),  # a folder
        ("runs/lr=0.2", None, "runs/lr=0.2"),  # no name has a slash
        ("A=runs/1", None, None),
        (f"{'a' * 65}=runs/1", None, None),
    ],
)
def test_an_argument_is_a_checkpoint_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, folder: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lr=0.1").mkdir()
    if folder is None:
        with pytest.raises(SettingsError):
            CheckpointSource.of(text)
    else:
        assert CheckpointSource.of(text) == CheckpointSource(Path(folder), name)


def test_a_card_is_read_without_its_front_matter_up_to_a_limit(checkpoint_copy: Path) -> None:
    card = checkpoint_copy / "README.md"
    for content, text, licence in (
        (b"---\nlicense: other\n---\n\n# tiny\n", "# tiny\n", "other"),
        ("# Größe\n".encode() + b"\xff", "# Größe\n\N{REPLACEMENT CHARACTER}", None),
        (bytes(1_000_001), "\0" * 1_000_000, None),
    ):
        card.write_bytes(content)
        served = load(checkpoint_copy, ()).served
        assert (served.card, served.licence) == (text, licence)
    card.unlink()
    served = load(checkpoint_copy, ()).served
    assert (served.card, served.licence) == ("", None)


@pytest.fixture(scope="module")
def checked(checkpoint_folder: Path) -> CheckedModel:
    return load(checkpoint_folder, ())


@pytest.fixture
def infer_correctly(checked: CheckedModel) -> Callable[[InferenceItem], Tensor]:
    """Runs an item on the model: (item) -> log-probabilities."""

    def run(item: InferenceItem) -> Tensor:
        return predict_rows(checked.model.runtime, item.pixels[None], [item.draw])[0]

    return run


async def never_answer(*_: object) -> Tensor:
    await asyncio.Event().wait()
    raise AssertionError


async def fail(*_: object) -> Tensor:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("infer", "timeout_s", "fault"),
    [
        (never_answer, 0.05, "EULERLORA_SERVE_LIFE__PROBE_TIMEOUT_S"),
        (fail, TIMEOUT_S, "CUDA error"),
    ],
)
def test_the_reason_of_a_missing_answer_is_reported(checked, infer, timeout_s, fault) -> None:
    assert fault in str(asyncio.run(checked.fault(infer, timeout_s)))


@pytest.mark.parametrize(
    ("timeouts", "progress", "faults"),
    [(1, int, 0), (2, int, 0), (3, int, 1), (9, object, 0)],
    ids=["a suspension", "late", "nothing is answered", "others are answered"],
)
def test_a_late_answer_is_a_fault_only_while_nothing_else_is_answered(
    checked, infer_correctly, monkeypatch, caplog, timeouts, progress, faults
) -> None:
    left = iter(range(timeouts))

    async def infer(_: ServedModel, item: InferenceItem) -> Tensor:
        loop = asyncio.get_running_loop()
        for _ in left:
            # Not the clock of this process, by which servers of other tests wait.
            later = loop.time() + 3600
            monkeypatch.setattr(loop, "time", lambda later=later: later)
            for _ in range(5):
                await asyncio.sleep(0)  # timeouts that have elapsed fire
        return infer_correctly(item)

    fault = asyncio.run(checked.fault(infer, TIMEOUT_S, progress))
    assert (fault is not None) == faults
    assert caplog.text.count("no known answer within 120 s") == timeouts - faults


def test_out_of_memory_is_retried(checked, infer_correctly) -> None:
    refusals = [OutOfMemory("later")] * 2

    async def infer(_: ServedModel, item: InferenceItem) -> Tensor:
        if refusals:
            raise refusals.pop()
        return infer_correctly(item)

    assert asyncio.run(checked.fault(infer, TIMEOUT_S)) is None
    assert not refusals


def test_a_model_for_which_there_is_never_enough_memory_fails_its_check(
    checked, monkeypatch
) -> None:
    async def infer(*_: object) -> Tensor:
        raise OutOfMemory("no memory for this image")

    monkeypatch.setattr("service.lifecycle.loading._RETRY_INTERVAL_S", 0)
    assert "no memory" in str(asyncio.run(checked.fault(infer, None)))


def test_errors_of_the_warm_up_are_ignored(checked) -> None:
    async def infer(*_: object) -> Tensor:
        raise OutOfMemory("full")

    asyncio.run(checked.warm_up(infer, max_batch_rows=7))
