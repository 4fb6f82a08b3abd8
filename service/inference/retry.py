"""Retries of a failed batch, so that one bad item does not affect the others."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from eulerlora.nn.runtime import ImageOutput
from eulerlora_client.contract.problems import ModelFailure, OutOfMemory, Problem
from service.inference.device_errors import DeviceFailed

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


def run_with_retry(
    infer: Callable[[Sequence[Item]], list[ImageOutput]],
    items: Sequence[Item],
    may_split: bool = True,
) -> list[ImageOutput | Problem]:
    """Returns the output of `infer` or a problem for each item, in order.

    A batch that is out of memory is split in two once. A batch that fails otherwise is run again
    item by item, once. Raises DeviceFailed.
    """
    count = len(items)
    try:
        outputs = infer(items)
        if len(outputs) != count:
            raise RuntimeError(f"expected {count} outputs, got {len(outputs)}")
        return list(outputs)
    except DeviceFailed:
        raise
    except OutOfMemory as problem:
        logger.warning("out of memory for a batch of %d items", count)
        if count == 1 or not may_split:
            return [OutOfMemory(problem.detail) for _ in items]
        size = -(-count // 2)
    except Exception:
        logger.exception("a batch of %d items failed", count)
        if count == 1:
            return [ModelFailure("the model failed on this image")]
        size = 1
    parts = [items[start : start + size] for start in range(0, count, size)]
    return [result for part in parts for result in run_with_retry(infer, part, may_split=False)]
