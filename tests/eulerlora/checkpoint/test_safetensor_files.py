"""eulerlora.checkpoint.safetensor_files: written files, and all kinds of files that are refused."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from eulerlora.checkpoint.safetensor_files import (
    read_metadata,
    read_tensors,
    tensors_sha256,
    write_tensors,
)
from eulerlora.errors import CheckpointError

Tensors = dict[str, Tensor]


@pytest.fixture
def tensors() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "b.weight": torch.randn(3, 4, generator=generator),
        "a": torch.randn(5, generator=generator),
        "scalar": torch.tensor(2.5),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def assert_refused(path: Path, expected: Tensors, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_tensors(path, expected)
    assert caught.value.path == path
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_float32_round_trips_exactly(path: Path, tensors: Tensors) -> None:
    write_tensors(path, tensors, torch.float32, {})
    actual = read_tensors(path, tensors)
    assert actual.keys() == tensors.keys()
    assert all(torch.equal(actual[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_rounded_float32(
    path: Path, tensors: Tensors, dtype: torch.dtype
) -> None:
    write_tensors(path, tensors, dtype, {})
    assert {tensor.dtype for tensor in load_file(path).values()} == {dtype}
    actual = read_tensors(path, tensors)
    for name, tensor in tensors.items():
        assert actual[name].dtype == torch.float32
        assert torch.equal(actual[name], tensor.to(dtype).float())


def test_metadata_round_trips(path: Path, tensors: Tensors) -> None:
    write_tensors(path, tensors, torch.float32, {"recipe": "a", "größe": "b"})
    assert read_metadata(path) == {"recipe": "a", "größe": "b"}


def test_a_file_without_metadata_has_none(path: Path, tensors: Tensors) -> None:
    write_tensors(path, tensors, torch.float32, {})
    assert read_metadata(path) == {}
    save_file(tensors, path)
    assert read_metadata(path) == {}


def test_transposed_and_differentiable_tensors_can_be_written(path: Path, tensors: Tensors) -> None:
    given = {"a": tensors["b.weight"].T.requires_grad_()}
    write_tensors(path, given, torch.float32, {})
    assert torch.equal(read_tensors(path, given)["a"], tensors["b.weight"].T)


def test_a_written_file_can_be_read_by_other_users(path: Path, tensors: Tensors) -> None:
    write_tensors(path, tensors, torch.float32, {})
    assert path.stat().st_mode & 0o777 == 0o644


def test_writing_replaces_a_file_and_leaves_no_other_file(path: Path, tensors: Tensors) -> None:
    path.write_text("old")
    write_tensors(path, tensors, torch.float32, {})
    assert list(path.parent.iterdir()) == [path]
    assert read_tensors(path, tensors).keys() == tensors.keys()


def test_a_failed_write_keeps_the_old_file(path: Path, tensors: Tensors) -> None:
    path.write_text("old")
    with pytest.raises(TypeError, match="metadata"):
        write_tensors(path, tensors, torch.float32, {"not a string": 1})
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_replacement_leaves_no_other_file(path: Path, tensors: Tensors) -> None:
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_tensors(path, tensors, torch.float32, {})
    assert list(path.parent.iterdir()) == [path]


def test_a_digest_does_not_depend_on_order_container_or_layout(tensors: Tensors) -> None:
    backwards = dict(reversed(tensors.items()))
    strided = tensors | {"b.weight": tensors["b.weight"].T.contiguous().T}
    doubled = {name: tensor.double() for name, tensor in tensors.items()}
    digests = {tensors_sha256(variant) for variant in (tensors, backwards, strided, doubled)}
    assert len(digests) == 1


def test_a_digest_of_rounded_weights_is_that_of_the_half_precision_file(
    path: Path, tensors: Tensors
) -> None:
    write_tensors(path, tensors, torch.float16, {})
    rounded = {name: tensor.half() for name, tensor in tensors.items()}
    assert tensors_sha256(load_file(path)) == tensors_sha256(rounded)
    assert tensors_sha256(read_tensors(path, tensors)) == tensors_sha256(rounded)
    assert tensors_sha256(rounded) != tensors_sha256(tensors)


def test_a_digest_depends_on_values_names_and_shapes(tensors: Tensors) -> None:
    changed = tensors | {"a": torch.nextafter(tensors["a"], torch.tensor(9.0))}
    renamed = {name.replace("scalar", "vector"): tensor for name, tensor in tensors.items()}
    reshaped = tensors | {"b.weight": tensors["b.weight"].reshape(4, 3)}
    digests = {tensors_sha256(variant) for variant in (tensors, changed, renamed, reshaped)}
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("a"), "missing tensor a"),
        (lambda t: t.update(c=torch.ones(2)), "unexpected tensor c"),
        (lambda t: t.update(a=torch.ones(6)), r"a: expected shape \[5\], got \[6\]"),
        (lambda t: t.update(a=torch.ones(1, 5)), r"a: expected shape \[5\], got \[1, 5\]"),
        (
            lambda t: t.update(a=torch.ones(5, dtype=torch.int32)),
            "a: expected floating point, got torch.int32",
        ),
        (
            lambda t: t.update(a=torch.ones(5, dtype=torch.bool)),
            "a: expected floating point, got torch.bool",
        ),
        (lambda t: t.update(a=torch.ones(5, dtype=torch.complex64)), "a: expected floating point"),
        (lambda t: t.update(a=torch.ones(5).to(torch.float8_e4m3fn)), "a: expected floating point"),
        (lambda t: t["a"][3:].fill_(torch.nan), "a: expected finite values"),
        (lambda t: t["a"][3:].fill_(-torch.inf), "a: expected finite values"),
    ],
)
def test_unexpected_tensors_are_refused(
    path: Path, tensors: Tensors, change: Callable[[Tensors], object], message: str
) -> None:
    actual = {name: tensor.clone() for name, tensor in tensors.items()}
    change(actual)
    save_file(actual, path)
    assert_refused(path, tensors, message)


def test_a_pickle_in_disguise_is_refused_and_not_run(path: Path, tensors: Tensors) -> None:
    trace = path.with_name("trace")

    class Touch:
        def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
            return (Path.touch, (trace,))

    torch.save({**tensors, "payload": Touch()}, path)
    assert_refused(path, tensors, "not a readable safetensors file")
    assert not trace.exists()


def test_a_missing_file_and_a_folder_are_refused(path: Path, tensors: Tensors) -> None:
    assert_refused(path, tensors, r"not a readable safetensors file \(no such file\)")
    path.mkdir()
    assert_refused(path, tensors, r"not a readable safetensors file \(a folder\)")


WRITTEN = save({"a": torch.zeros(2)})


def with_header(text: str) -> bytes:
    """Returns a file with a header and 12 bytes of tensors."""
    return struct.pack("<Q", len(text)) + text.encode() + bytes(12)


def entry(shape: object, *offsets: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "content",
    [
        *(WRITTEN[:length] for length in (0, 4, 8, 50, -1)),
        WRITTEN + b"more",
        b"random bytes that are no header",
        with_header(json.dumps({"a": entry([2], 0, 8), "b": entry([2], 4, 12)})),  # overlap
        with_header(json.dumps({"a": entry([2], 4, 12)})),  # a hole
        with_header(json.dumps({"a": entry([3], 0, 8)})),  # a wrong size
        with_header(json.dumps({"a": entry([2], 0, 8, dtype="F99")})),
        with_header(json.dumps({"a": entry([-2], 0, 8)})),
        with_header('["a"]'),
        with_header("{" + ",".join(['"a":' + json.dumps(entry([1], 0, 4))] * 2) + "}"),
    ],
)
def test_a_damaged_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert_refused(path, {"a": torch.zeros(2)}, "not a readable safetensors file")


def test_the_metadata_of_an_unreadable_file_are_refused(path: Path) -> None:
    for content in (None, b"", b"random bytes that are no header"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(CheckpointError, match=str(path)):
            read_metadata(path)
