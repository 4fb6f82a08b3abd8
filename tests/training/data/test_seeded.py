"""Torch's own generators, seeded for a while."""

import pytest
import torch

from training.data.augmentation import seeded

CPU = torch.device("cpu")


def draws(*entropy: int) -> list[float]:
    with seeded(CPU, *entropy):
        return torch.rand(3).tolist()


def test_what_is_drawn_is_a_function_of_the_entropy_alone() -> None:
    first = draws(1, 2)
    torch.rand(5)
    assert draws(1, 2) == first
    assert len({tuple(draws(*each)) for each in ((1, 2), (2, 1), (1, 2, 3), (1,))}) == 4


def test_the_generator_is_left_as_it_was_even_after_an_error() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2).tolist()
    torch.manual_seed(5)
    with pytest.raises(ZeroDivisionError), seeded(CPU, 1):
        torch.rand(7)
        raise ZeroDivisionError
    assert torch.rand(2).tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_s_generator_is_seeded_without_the_cpu_s() -> None:
    gpu = torch.device("cuda", torch.cuda.current_device())
    before = torch.random.get_rng_state()
    found = []
    for _ in range(2):
        with seeded(gpu, 3):
            found.append(torch.rand(2, device=gpu).tolist())
    assert found[0] == found[1]
    assert torch.equal(torch.random.get_rng_state(), before)
