"""The engine: many questions in one pass, each with the answer it would get alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from eulerlora.model import EulerLoRA
from eulerlora.predict import predict_rows
from eulerlora.settings import Draw
from service.inference.engine import MOST_LANES, Engine, Question


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    """Five images, each asked in another way."""
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    draws = [
        Draw(),
        Draw(mode="stoch", samples=1, seed=1),
        Draw(mode="stoch", samples=5, seed=2),
        Draw(seed=3),
        Draw(mode="stoch", samples=2, seed=2**32 - 1),
    ]
    return [Question(image, draw) for image, draw in zip(images, draws, strict=True)]


def test_a_question_takes_one_row_for_each_adapter_and_sample(model: EulerLoRA, questions) -> None:
    engine = Engine(model)
    assert [engine.rows(each.draw.samples) for each in questions] == [2, 2, 10, 2, 4]
    answers = engine.answer(questions)
    assert [tuple(answer.shape) for answer in answers] == [(2, 3), (2, 3), (10, 3), (2, 3), (4, 3)]


def test_answers_are_log_probabilities_in_float64_on_the_cpu(model: EulerLoRA, questions) -> None:
    for answer in Engine(model).answer(questions):
        assert answer.dtype == torch.float64
        assert answer.device.type == "cpu"
        assert torch.allclose(answer.exp().sum(dim=-1), torch.ones(len(answer)).double())


def test_a_mixed_batch_answers_each_question_as_if_it_were_alone(
    model: EulerLoRA, questions
) -> None:
    engine = Engine(model)
    for question, answer in zip(questions, engine.answer(questions), strict=True):
        alone = engine.answer([question])[0]
        direct = predict_rows(model.network, question.pixels.unsqueeze(0), [question.draw])[0]
        torch.testing.assert_close(answer, alone, rtol=0, atol=1e-5)
        assert torch.equal(alone, direct)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_image_without_a_finite_answer_leaves_its_neighbours_alone(
    model: EulerLoRA, questions, value: float
) -> None:
    engine = Engine(model)
    broken = Question(torch.full((3, 32, 32), value), Draw(mode="stoch", samples=3, seed=5))
    first, poisoned, *others = engine.answer([questions[0], broken, *questions[1:]])
    assert poisoned.shape == (6, 3)
    assert poisoned.isnan().all()
    for answer, clean in zip([first, *others], engine.answer(questions), strict=True):
        torch.testing.assert_close(answer, clean, rtol=0, atol=1e-5)


def test_an_answer_is_the_same_with_one_core_and_with_two(model: EulerLoRA, questions) -> None:
    engine, before = Engine(model), torch.get_num_threads()
    try:
        given = []
        for cores in (1, 2):
            torch.set_num_threads(cores)
            given.append(engine.answer(questions))
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*given, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def test_answers_of_passes_that_run_at_the_same_time_are_those_of_each_alone(
    model: EulerLoRA, questions
) -> None:
    engine = Engine(model)
    alone = engine.answer(questions)
    with ThreadPoolExecutor(2) as lanes:
        for answers in lanes.map(engine.answer, [questions] * 8):
            for found, expected in zip(answers, alone, strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_cpu_has_a_lane_for_each_core_but_one_for_a_compiled_network(
    checkpoint_folder: Path, model: EulerLoRA, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = EulerLoRA.load(checkpoint_folder, "cpu", compiler="eager")
    found = []
    for cores in (1, 2, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda cores=cores: cores)
        found.append((Engine(model).lanes, Engine(compiled).lanes))
    assert found == [(1, 1), (2, 1), (MOST_LANES, 1)]
