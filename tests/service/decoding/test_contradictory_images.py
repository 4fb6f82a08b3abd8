"""Decoding of files whose chunks are missing, repeated, in another order or in contradiction."""

import pytest

from eulerlora_client.contract.problems import Problem
from service.decoding.decode import decode
from service.settings import ImageLimits
from tests.damaged_images import contradictory_images


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_contradictory_files_give_an_image_or_a_problem_of_the_client() -> None:
    limits = ImageLimits()
    refused = 0
    for content in contradictory_images():
        try:
            assert decode(content, limits).pixels.shape == (3, 32, 32)
        except Problem as problem:
            refused += 1
            assert problem.status in (415, 422)
    assert refused > 1000
