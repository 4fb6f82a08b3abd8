"""The ceiling is the fastest of the candidate products."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.inference.ceiling import Ceiling, Product, best_ceiling, candidates
from benchmarks.measurement.sizes import SMALL_NETWORK

CPU = torch.device("cpu")


def test_a_product_has_the_flops_that_torch_counts() -> None:
    ceiling = Ceiling(Product(5, 7, 11), torch.float32, CPU)
    with FlopCounterMode(display=False) as counter:
        ceiling()
    assert counter.get_total_flops() == ceiling.flops == 2 * 5 * 7 * 11


def test_candidates_are_squares_and_the_products_of_the_frozen_layers() -> None:
    shape = SMALL_NETWORK.backbone
    actual = candidates(shape, rows=3, squares=(16,))
    assert actual[0] == Product(16, 16, 16)
    assert {product.rows for product in actual[1:]} == {3 * shape.tokens}
    assert {(product.inner, product.columns) for product in actual[1:]} == {
        (16, 48),
        (16, 24),
        (24, 16),
    }


def test_the_ceiling_is_the_fastest_of_the_candidates() -> None:
    """A product with one column has little arithmetic for the memory it reads."""
    slow, fast = Product(64, 64, 1), Product(256, 256, 256)
    actual = best_ceiling([slow, fast], torch.float32, CPU, repeats=3, warmups=1)
    assert actual.product == fast
