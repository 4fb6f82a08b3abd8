"""eulerlora.nn.rows against nested loops over images, adapters and samples."""

import torch

from eulerlora.nn.rows import Rows


def test_rows_run_over_images_then_adapters_then_samples() -> None:
    samples, adapters = [1, 3, 2], 2
    pairs = [
        (image, adapter)
        for image, count in enumerate(samples)
        for adapter in range(adapters)
        for _ in range(count)
    ]
    rows = Rows.of(samples, adapters)
    assert list(zip(rows.image.tolist(), rows.adapter.tolist(), strict=True)) == pairs
    assert rows.counts == (2, 6, 4)
    assert len(rows) == 12


def test_row_indices_have_the_dtype_of_an_index() -> None:
    rows = Rows.of([2], 3)
    assert rows.image.dtype == rows.adapter.dtype == torch.int64


def test_values_are_split_into_the_rows_of_each_image() -> None:
    rows = Rows.of([1, 3, 2], 2)
    values = rows.image.float()[:, None] * torch.ones(1, 5)
    parts = rows.by_image(values)
    assert [len(part) for part in parts] == [2, 6, 4]
    for image, part in enumerate(parts):
        assert torch.equal(part, torch.full_like(part, image))


def test_rows_on_another_device_keep_their_counts() -> None:
    rows = Rows.of([1, 2], 2)
    moved = rows.to(torch.device("meta"))
    assert moved.image.device.type == moved.adapter.device.type == "meta"
    assert moved.counts == rows.counts
    assert len(moved) == len(rows)


def test_parts_hold_whole_images_and_at_most_the_allowed_rows_or_one_image() -> None:
    rows = Rows.of([1, 3, 1, 5, 1], adapters=2)
    parts = list(rows.split(8))
    assert [part.renumbered.counts for part in parts] == [(2, 6), (2,), (10,), (2,)]
    assert [part.images for part in parts] == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    for part in parts:
        assert torch.equal(part.renumbered.image + part.images.start, rows.image[part.rows])
        assert torch.equal(part.renumbered.adapter, rows.adapter[part.rows])
        assert len(part.renumbered) == sum(part.renumbered.counts)
    assert [part.rows.stop for part in parts] == [8, 10, 20, 22]


def test_rows_within_the_limit_are_one_part() -> None:
    rows = Rows.of([2, 1], adapters=3)
    (part,) = rows.split(len(rows))
    assert torch.equal(part.renumbered.image, rows.image)
    assert part.renumbered.counts == rows.counts
