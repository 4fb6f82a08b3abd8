"""`EulerLoRA`: predictions, accepted images and errors."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, Tensor
from torch.utils.data import DataLoader, TensorDataset

from eulerlora import EulerLoRA, summarise
from eulerlora.answer import Predictions
from eulerlora.checkpoint.files import load_checkpoint
from eulerlora.images.decode import upright_rgb
from eulerlora.images.preprocess import content_seed
from eulerlora_contract.checkpoints import Threshold
from eulerlora_contract.errors import ImageError, NonFiniteError, SettingsError
from tests.checkpoint_files import write_config
from tests.conftest import DET, STOCH
from tests.icc_profiles import DISPLAY_P3, rgb_profile

COUNT, ADAPTERS, CLASSES = 5, 2, 3


@pytest.fixture(scope="module")
def model(checkpoint_folder: Path) -> EulerLoRA:
    return EulerLoRA.load(checkpoint_folder, device="cpu")


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    random = np.random.default_rng(0)
    sizes = [(32, 32), (40, 60), (50, 35), (33, 90), (64, 64)]
    return [Image.fromarray(random.integers(0, 256, (*s, 3), dtype=np.uint8)) for s in sizes]


@pytest.fixture(scope="module")
def tensors() -> Tensor:
    return torch.rand(COUNT, 3, 32, 32, generator=Generator().manual_seed(0))


def assert_same(actual: Predictions, expected: Predictions, atol: float = 1e-6) -> None:
    torch.testing.assert_close(actual.trajectories, expected.trajectories, rtol=0, atol=atol)
    torch.testing.assert_close(actual.entropy, expected.entropy, rtol=0, atol=10 * atol)


@pytest.mark.parametrize(("mode", "per_adapter"), [("det", 1), ("stoch", 4)])
def test_a_prediction_has_the_documented_fields(
    model: EulerLoRA, photos: list[Image.Image], mode: str, per_adapter: int
) -> None:
    actual = model.predict(photos, mode=mode, seed=0)
    assert actual.probabilities.shape == (COUNT, CLASSES)
    for name in ("entropy", "expected_entropy", "mutual_information", "msp", "ood"):
        assert getattr(actual, name).shape == (COUNT,), name
    assert actual.trajectories.shape == (COUNT, ADAPTERS * per_adapter, CLASSES)
    floats = {
        name: value
        for name, value in vars(actual).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    }
    assert {value.dtype for value in floats.values()} == {torch.float64}
    assert {value.device.type for value in floats.values()} == {"cpu"}
    ones = torch.ones(COUNT, ADAPTERS * per_adapter).double()
    torch.testing.assert_close(actual.trajectories.sum(dim=-1), ones)


def test_summary_and_labels_are_computed_from_the_trajectories(
    model: EulerLoRA, photos: list[Image.Image]
) -> None:
    actual = model.predict(photos, mode="stoch", samples=3, seed=0)
    for name, value in vars(summarise(actual.trajectories)).items():
        assert torch.equal(getattr(actual, name), value), name
    assert model.classes == tuple(label.name for label in model.config.classes)
    best = actual.trajectories.mean(dim=1).argmax(dim=-1)
    assert actual.labels == tuple(model.classes[index] for index in best)


def test_images_paths_strings_and_arrays_give_the_same_prediction(
    model: EulerLoRA, photos: list[Image.Image], tmp_path: Path
) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(COUNT)]
    for photo, path in zip(photos, paths, strict=True):
        photo.save(path)
    expected = model.predict(photos, mode="stoch")
    arrays = [np.asarray(photo) for photo in photos]  # read-only
    mirrored = [array[:, ::-1].copy()[:, ::-1] for array in arrays]  # negative strides
    for images in (paths, [str(path) for path in paths], tuple(paths), arrays, mirrored):
        assert torch.equal(model.predict(images, mode="stoch").trajectories, expected.trajectories)
    same_size = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 36, 3), dtype=np.uint8)
    one, many = (model.predict(given, mode="stoch") for given in (same_size, list(same_size)))
    assert torch.equal(one.trajectories, many.trajectories)


@pytest.mark.parametrize("mode", ["det", "stoch"])
def test_a_tensor_gives_the_prediction_of_the_same_image(
    model: EulerLoRA, photos: list[Image.Image], mode: str
) -> None:
    square = [photo.resize((48, 48)) for photo in photos]
    pixels = torch.stack([upright_rgb(photo).pixels for photo in square]) / 255
    actual, expected = (model.predict(images, mode=mode, seed=1) for images in (pixels, square))
    assert_same(actual, expected)


def test_without_a_seed_an_image_has_its_content_seed(
    model: EulerLoRA, photos: list[Image.Image], tensors: Tensor
) -> None:
    for images in (photos, tensors):
        actual = model.predict(images, mode="stoch").trajectories
        pixels = images if isinstance(images, Tensor) else [upright_rgb(i).pixels for i in images]
        seeds = [content_seed(image, model.config.sampling_digest) for image in pixels]
        assert len(set(seeds)) == COUNT
        for index, seed in enumerate(seeds):
            alone = model.predict(images[index : index + 1], mode="stoch", seed=seed)
            torch.testing.assert_close(actual[index], alone.trajectories[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["det", "stoch"])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 100])
def test_the_batch_size_does_not_matter(
    model: EulerLoRA, photos: list[Image.Image], mode: str, batch_size: int
) -> None:
    expected = model.predict(photos, mode=mode)
    assert_same(model.predict(photos, mode=mode, batch_size=batch_size), expected)


@pytest.mark.parametrize(("mode", "rows"), [("det", 2), ("stoch", 8)])
def test_no_images_give_an_empty_prediction(model: EulerLoRA, mode: str, rows: int) -> None:
    for images in ([], torch.empty(0, 3, 32, 32)):
        actual = model.predict(images, mode=mode)
        assert actual.probabilities.shape == (0, CLASSES)
        assert actual.trajectories.shape == (0, rows, CLASSES)
        assert actual.msp.shape == actual.ood.shape == (0,)
        assert actual.labels == ()


def test_an_image_with_an_msp_below_the_threshold_is_out_of_distribution(
    checkpoint_copy: Path, model: EulerLoRA, tensors: Tensor
) -> None:
    msp = {mode: model.predict(tensors, mode=mode).msp for mode in ("det", "stoch")}
    thresholds = tuple(
        Threshold(options=options, msp=value, kept=0.95, images=5, data="noise")
        for options, value in (
            (DET, msp["det"].median().item()),
            (STOCH, msp["stoch"].sort().values[1].item()),
        )
    )
    write_config(checkpoint_copy, model.config.model_copy(update={"thresholds": thresholds}))
    loaded = EulerLoRA.load(checkpoint_copy, device="cpu")
    # the new revision means new seeds
    for mode, threshold in zip(("det", "stoch"), thresholds, strict=True):
        actual = loaded.predict(tensors, mode=mode)
        assert actual.ood.dtype == torch.bool
        assert actual.ood.tolist() == [value < threshold.msp for value in actual.msp.tolist()]
    assert loaded.predict(tensors).ood.sum() == 2  # the median itself is not flagged


def test_options_without_a_threshold_give_no_flag(
    checkpoint_copy: Path, model: EulerLoRA, tensors: Tensor
) -> None:
    assert model.predict(tensors, mode="stoch", samples=3).ood is None
    write_config(checkpoint_copy, model.config.model_copy(update={"thresholds": ()}))
    loaded = EulerLoRA.load(checkpoint_copy, device="cpu")
    assert loaded.predict(tensors).ood is None
    assert loaded.predict(tensors, mode="stoch", samples=4).ood is None


def test_the_sampler_is_the_checkpoints_or_the_given_one(
    checkpoint_copy: Path, model: EulerLoRA, tensors: Tensor
) -> None:
    plain = model.predict(tensors, "stoch", seed=1)
    balanced = model.predict(tensors, "stoch", seed=1, sampler="balanced")
    assert (plain.trajectories - balanced.trajectories).abs().max() > 1e-3
    assert plain.ood is not None
    assert balanced.ood is None  # the threshold is for independent samples
    write_config(checkpoint_copy, model.config.model_copy(update={"sampler": "balanced"}))
    loaded = EulerLoRA.load(checkpoint_copy, device="cpu")
    assert_same(loaded.predict(tensors, "stoch", seed=1), balanced)
    assert_same(loaded.predict(tensors, "stoch", seed=1, sampler="independent"), plain)


def test_views_are_the_checkpoints_in_stoch_and_others_have_no_flag_and_no_set(
    checkpoint_copy: Path, model: EulerLoRA, tensors: Tensor
) -> None:
    seen = model.predict(tensors, "stoch", seed=1, views=8, coverage=0.9)
    assert (seen.ood, seen.prediction_sets) == (None, None)
    assert {warning.code for warning in seen.warnings} == {"no_ood_threshold", "no_prediction_set"}
    write_config(checkpoint_copy, model.config.model_copy(update={"views": 8}))
    loaded = EulerLoRA.load(checkpoint_copy, device="cpu")
    by_default = loaded.predict(tensors, "stoch", seed=1)
    assert_same(by_default, seen)
    assert by_default.views.tolist() == [8] * COUNT
    assert by_default.trajectory_views.shape == (COUNT, ADAPTERS * 4)
    det = loaded.predict(tensors)
    assert_same(det, model.predict(tensors))
    assert det.ood is not None
    all_views = loaded.predict(tensors, views=8)
    assert all_views.ood is None
    assert all_views.trajectories.shape == (COUNT, ADAPTERS * 8, CLASSES)
    assert all_views.samples.tolist() == [1] * COUNT


def test_a_checkpoint_with_a_canvas_answers_for_images_of_all_sizes_and_det_as_without(
    checkpoint_copy: Path, model: EulerLoRA, tmp_path: Path
) -> None:
    preprocessing = model.config.preprocessing.model_copy(update={"canvas": (64, 48)})
    config = model.config.model_copy(update={"preprocessing": preprocessing, "views": 8})
    write_config(checkpoint_copy, config)
    loaded = EulerLoRA.load(checkpoint_copy, device="cpu")
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    large = Image.fromarray(smooth).resize((4000, 3000), Image.Resampling.BICUBIC)
    large.save(tmp_path / "large.jpg", quality=95)
    small = large.resize((64, 48), Image.Resampling.BILINEAR)
    answers = loaded.predict(
        [tmp_path / "large.jpg", small, large.rotate(90, expand=True)], "stoch", seed=1
    )
    torch.testing.assert_close(answers.trajectories[0], answers.trajectories[1], rtol=0, atol=0.02)
    seen = loaded.predict(small, views=8).trajectories[0].unflatten(0, (ADAPTERS, 8))
    whole = model.predict(small)
    assert_same(loaded.predict(small), whole)
    torch.testing.assert_close(seen[:, 0], whole.trajectories[0], rtol=0, atol=1e-6)
    crop = model.predict(small.crop((16, 8, 48, 40)).transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    torch.testing.assert_close(seen[:, 1], crop.trajectories[0], rtol=0, atol=1e-5)
    corner = small.crop((0, 0, 32, 32)).transpose(Image.Transpose.TRANSPOSE)
    torch.testing.assert_close(seen[:, 4], model.predict(corner).trajectories[0], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def varied(model: EulerLoRA) -> Tensor:
    """Noise images for which `auto` runs different numbers of samples."""
    noise = torch.rand(24, 3, 32, 32, generator=Generator().manual_seed(4))
    return noise * torch.linspace(0, 1, 24).view(-1, 1, 1, 1)


def test_auto_answers_with_the_first_samples_of_a_whole_request(
    model: EulerLoRA, varied: Tensor
) -> None:
    actual = model.predict(varied, "stoch", "auto", seed=2)
    whole = model.predict(varied, "stoch", 4, seed=2).trajectories.unflatten(1, (ADAPTERS, 4))
    assert set(actual.samples.tolist()) == {1, 2, 4}
    assert actual.rows.tolist() == (ADAPTERS * actual.samples).tolist()
    rows = actual.trajectories.unflatten(1, (ADAPTERS, 4))
    for index, samples in enumerate(actual.samples.tolist()):
        run, rest = rows[index].split((samples, 4 - samples), dim=1)
        torch.testing.assert_close(run, whole[index, :, :samples], rtol=0, atol=1e-5)
        expected = summarise(run.flatten(0, 1)[None])
        for name in ("probabilities", "entropy", "expected_entropy", "msp"):
            torch.testing.assert_close(
                getattr(actual, name)[index], getattr(expected, name)[0], rtol=0, atol=1e-5
            )
        assert rest.isnan().all()
    assert model.predict(varied[:2], "stoch", 3).samples.tolist() == [3, 3]
    assert model.predict(varied[:2]).rows is None
    empty = model.predict([], "stoch", "auto")
    assert empty.samples.shape == empty.rows.shape == (0,)


def test_auto_runs_as_many_samples_in_a_batch_as_alone(model: EulerLoRA, varied: Tensor) -> None:
    together, again = (model.predict(varied, "stoch", "auto", batch_size=size) for size in (16, 5))
    alone = [
        model.predict(varied[index : index + 1], "stoch", "auto") for index in range(len(varied))
    ]
    assert together.samples.tolist() == again.samples.tolist()
    assert together.samples.tolist() == [int(prediction.samples) for prediction in alone]
    for name in ("probabilities", "entropy"):
        expected = torch.cat([getattr(prediction, name) for prediction in alone])
        torch.testing.assert_close(getattr(together, name), expected, rtol=0, atol=1e-5)


def test_a_file_that_cannot_be_read_is_an_image_error_that_names_it(
    model: EulerLoRA, tmp_path: Path
) -> None:
    """images/test_files.py has the kinds of damage."""
    photo, empty, cut = tmp_path / "photo.jpg", tmp_path / "empty.png", tmp_path / "cut.jpg"
    Image.effect_noise((64, 64), 50).save(photo)
    cut.write_bytes(photo.read_bytes()[:-1000])
    empty.touch()
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (40, 40)).save(clear)
    for path in (empty, cut, clear, tmp_path / "nothing.png", tmp_path):
        with pytest.raises(ImageError, match=re.escape(str(path))):
            model.predict([photo, path])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"samples": samples}, "samples") for samples in (1, 9, "auto")),  # in mode det
        *(({"mode": "stoch", "samples": samples}, "samples") for samples in (0, -1, 2.5)),
        *(({"mode": "stoch", "seed": seed}, "seed") for seed in (-1, 2**32)),
        ({"mode": "stoch", "sampler": "sobol"}, "sampler"),
        ({"mode": "mean"}, "mode"),
        *(({"mode": "stoch", "views": views}, "views") for views in (0, 3, 16)),
        ({"mode": "stoch", "samples": "auto", "views": 8}, "views"),
        *(({"batch_size": size}, "batch_size") for size in (0, -1)),
        *(({"coverage": share}, "coverage") for share in (0, 1, -0.1, 1.5, float("nan"))),
    ],
)
def test_a_wrong_option_is_a_settings_error_of_one_line(
    model: EulerLoRA, tensors: Tensor, options: dict[str, object], named: str
) -> None:
    with pytest.raises(SettingsError, match=f"^{named}: ") as caught:
        model.predict(tensors, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(3, 32, 32),
        torch.zeros(2, 3, 32),
        torch.zeros(2, 1, 32, 32),
        torch.zeros(2, 32, 32, 3),
        torch.zeros(2, 3, 32, 32, dtype=torch.uint8),
        [np.zeros((40, 40), np.uint8)],
        [np.zeros((40, 40, 4), np.uint8)],
        [np.zeros((3, 40, 40), np.uint8)],
        [np.zeros((40, 40, 3), np.float32)],
        [np.zeros((0, 40, 3), np.uint8)],
        [np.zeros((40, 40, 3, 3), np.uint8)],
        np.zeros((40, 40), np.uint8),
        torch.full((2, 3, 32, 32), 255.0),
        torch.full((2, 3, 32, 32), 1.5),
        torch.full((2, 3, 32, 32), -0.01),
        torch.full((2, 3, 32, 32), torch.nan),
        [torch.zeros(3, 32, 32)],
        [(Image.new("RGB", (40, 40)), 1)],
        [b"\x89PNG"],
        b"\x89PNG",
        {"images": torch.zeros(2, 3, 32, 32)},
        TensorDataset(torch.zeros(2, 3, 32, 32)),
        DataLoader(TensorDataset(torch.zeros(2, 3, 32, 32))),
        None,
    ],
    ids=lambda images: f"{type(images).__name__} {getattr(images, 'shape', '')}",
)
def test_input_of_another_shape_or_type_is_an_image_error(model: EulerLoRA, images: object) -> None:
    with pytest.raises(ImageError, match="expected"):
        model.predict(images)


def test_tensors_of_other_floating_point_types_get_the_answer_to_their_rounding(
    model: EulerLoRA, tensors: Tensor
) -> None:
    expected = model.predict(tensors)
    for dtype in (torch.float64, torch.float16):
        actual = model.predict(tensors.to(dtype))
        torch.testing.assert_close(actual.probabilities, expected.probabilities, rtol=0, atol=1e-2)
    assert_same(model.predict(tensors * (1 + 1e-6)), model.predict(tensors))


@pytest.mark.parametrize("mode", ["det", "stoch"])
def test_nan_weights_are_a_non_finite_error(
    checkpoint_folder: Path, tensors: Tensor, mode: str
) -> None:
    loaded = load_checkpoint(checkpoint_folder)
    with torch.no_grad():
        loaded.network.blocks[1].up.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="NaN"):
        EulerLoRA(loaded, torch.device("cpu")).predict(tensors, mode=mode)


def test_device_auto_is_cuda_if_available(checkpoint_folder: Path) -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert EulerLoRA.load(checkpoint_folder, "auto").device.type == expected
    assert EulerLoRA.load(checkpoint_folder, "cpu").device == torch.device("cpu")
    for name in ("abacus", "meta", "hpu", "cuda:x"):
        with pytest.raises(SettingsError, match=name):
            EulerLoRA.load(checkpoint_folder, name)


def test_conversions_of_images_are_warnings_of_the_prediction(
    model: EulerLoRA, tmp_path: Path
) -> None:
    image = Image.new("RGB", (40, 50), (200, 100, 50))
    image.save(tmp_path / "a.png", icc_profile=b"broken")
    wide = image.copy()
    wide.info["icc_profile"] = rgb_profile(DISPLAY_P3)
    prediction = model.predict([image, tmp_path / "a.png", wide])
    conversions = prediction.warnings[-2:]
    assert [warning.code for warning in conversions] == ["profile_ignored", "converted_to_srgb"]
    assert [warning.message[:8] for warning in conversions] == ["image 1:", "image 2:"]
    assert torch.equal(prediction.probabilities[0], prediction.probabilities[1])
    assert not torch.equal(prediction.probabilities[0], prediction.probabilities[2])
