"""Models behind their batchers, and the mapping that names them."""

import asyncio
import threading

import pytest
import torch

from eulerlora.checkpoint import Checkpoint
from eulerlora.errors import SettingsError
from eulerlora.model import EulerLoRA
from eulerlora.settings import Draw
from service.engine import Engine, Question
from service.errors import NotReady, UnknownModel
from service.served_model import ServedModel, ServedModels

QUESTION = Question(
    torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(3)),
    Draw(mode="stoch", samples=2, seed=4),
)
TIMEOUT_S = 20


@pytest.fixture
def serve(make_network, make_config):
    """(name) -> a served model of that name."""

    def build(name: str) -> ServedModel:
        network = make_network()
        config = make_config(network, name=name)
        checkpoint = Checkpoint(network, config, "sha256:0")
        return ServedModel(EulerLoRA(checkpoint, torch.device("cpu")), max_batch_rows=8)

    return build


def test_a_running_model_answers_as_its_engine_does(model) -> None:
    served = ServedModel(model, max_batch_rows=8)
    with served.running():
        answered = asyncio.run(served.answer(QUESTION))
    assert torch.equal(answered.answer, Engine(model).answer([QUESTION])[0])
    assert answered.queued_s >= 0
    assert answered.ran_s > 0


def test_a_model_that_stopped_refuses_questions_as_not_ready(model) -> None:
    served = ServedModel(model, max_batch_rows=8)
    with served.running():
        pass
    with pytest.raises(NotReady):
        asyncio.run(served.answer(QUESTION))


def test_a_model_stops_its_thread_even_when_the_service_fails(model) -> None:
    before = threading.active_count()
    served = ServedModel(model, max_batch_rows=8)
    with pytest.raises(ZeroDivisionError), served.running():
        assert threading.active_count() == before + 1
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_a_question_whose_client_is_gone_while_it_waits_is_never_run(serve) -> None:
    served = serve("one")
    passes: list[int] = []
    entered, gate = threading.Event(), threading.Event()

    def hold(_: object, inputs: tuple[torch.Tensor, ...]) -> None:
        passes.append(len(inputs[0]))
        entered.set()
        assert gate.wait(TIMEOUT_S)

    async def story() -> None:
        first = asyncio.create_task(served.answer(QUESTION))
        await asyncio.to_thread(entered.wait, TIMEOUT_S)
        gone, patient = (asyncio.create_task(served.answer(QUESTION)) for _ in range(2))
        await asyncio.sleep(0)  # both are in the queue
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        gate.set()
        one, two = await asyncio.gather(first, patient)
        assert torch.allclose(one.answer, two.answer)

    gate.set()
    with served.running():  # warms up through the same hook
        handle = served.model.network.register_forward_pre_hook(hold)
        gate.clear()
        asyncio.run(story())
        handle.remove()
    assert passes == [1, 1]


def test_the_first_model_is_the_default(serve) -> None:
    first, second = serve("b"), serve("a")
    models = ServedModels([first, second])
    assert (list(models), len(models), models.default) == (["b", "a"], 2, "b")
    assert models.named(None) is models["b"] is first
    assert models.named("a") is second


@pytest.mark.parametrize("name", ["", "A", "xyzzy", "b "])
def test_an_unknown_name_is_told_the_served_ones_and_not_repeated(serve, name) -> None:
    with pytest.raises(UnknownModel) as raised:
        ServedModels([serve("first"), serve("second")]).named(name)
    assert raised.value.detail == "served are: first, second"


def test_two_models_of_one_name_are_refused(serve) -> None:
    with pytest.raises(SettingsError, match="twin"):
        ServedModels([serve("twin"), serve("twin")])
