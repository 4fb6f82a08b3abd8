"""Fixtures of the prediction tests."""

from collections.abc import Callable
from typing import Any

import pytest

from eulerlora.model import EulerLoRA
from tests.service.harness import PipelineHarness

Open = Callable[..., Any]


@pytest.fixture
def harness(model) -> Open:
    """(audit, model, **settings) -> a context of a pipeline harness."""

    def build(audit: Any = None, of: EulerLoRA = model, **settings: Any) -> Any:
        return PipelineHarness(of, audit, settings).running()

    return build
