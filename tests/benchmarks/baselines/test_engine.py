import pytest
import torch

from benchmarks.baselines.engine import answers, engine, random_network
from benchmarks.measurement.sizes import SMALL_NETWORK
from eulerlora.settings import Draw


@pytest.mark.parametrize(
    ("precision", "compiler", "tolerance"),
    [("float32", None, 1e-4), ("bfloat16", None, 5e-2), ("float32", "eager", 1e-4)],
)
def test_every_engine_gives_the_networks_logits_in_float32(
    question, precision, compiler, tolerance
) -> None:
    network = random_network(SMALL_NETWORK)
    coefficients = question.coefficients
    with torch.inference_mode():
        expected = network(question.images, question.rows, coefficients)
    found = engine(network, precision, compiler)(question.images, question.rows, coefficients)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_an_engine_leaves_its_network_as_it_was(question) -> None:
    network = question.network
    before = {name: (p.dtype, p.requires_grad) for name, p in network.named_parameters()}
    engine(network, "bfloat16")
    assert before == {n: (p.dtype, p.requires_grad) for n, p in network.named_parameters()}


def test_requests_of_both_modes_share_a_batch_and_keep_their_answers(question) -> None:
    ours, settings = engine(question.network, "float32"), question.network.settings
    draws = [Draw(), Draw(mode="stoch", samples=3, seed=4)]
    together = answers(ours, question.images, draws, 2, settings)
    assert [len(each) for each in together] == [2, 6]
    for index, draw in enumerate(draws):
        (alone,) = answers(ours, question.images[index, None], [draw], 2, settings)
        torch.testing.assert_close(together[index], alone, rtol=1e-4, atol=1e-4)


def test_random_adapters_change_the_logits_but_do_not_drown_the_image() -> None:
    """The figures are of a network that does what a trained one does."""
    network = random_network(SMALL_NETWORK)
    assert all(parameter.abs().max() > 0 for _, parameter in network.adapter_parameters())
    again = random_network(SMALL_NETWORK)
    assert all(
        torch.equal(first, second)
        for first, second in zip(network.parameters(), again.parameters(), strict=True)
    )
