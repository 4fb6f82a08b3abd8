"""A batch's answers, in which a question that cannot be answered does not hurt its neighbours."""

import logging
from collections.abc import Callable, Sequence

from torch import Tensor

from service.errors import ModelFailure, OutOfMemory, Problem
from service.inference.device_errors import DeviceFailed
from service.inference.engine import Question

logger = logging.getLogger(__name__)

Outcome = Tensor | Problem
Answer = Callable[[Sequence[Question]], list[Tensor]]


def outcomes(
    answer: Answer, questions: Sequence[Question], may_split: bool = True
) -> list[Outcome]:
    """An answer or a problem for each question, in order.

    answer: an engine's pass, which is run several times where it fails.
    A batch without enough memory is split in two, once; of a batch that fails otherwise each
    question is run again alone, once. Raises DeviceFailed.
    """
    count = len(questions)
    try:
        answers = answer(questions)
        assert len(answers) == count
        return list(answers)
    except DeviceFailed:
        raise
    except OutOfMemory as problem:
        logger.warning("no memory for a batch of %d questions", count)
        if count == 1 or not may_split:
            return [OutOfMemory(problem.detail) for _ in questions]
        size = -(-count // 2)
    except Exception:
        logger.exception("a batch of %d questions failed", count)
        if count == 1:
            return [ModelFailure("the model failed on this image")]
        size = 1
    parts = [questions[start : start + size] for start in range(0, count, size)]
    return [each for part in parts for each in outcomes(answer, part, may_split=False)]
