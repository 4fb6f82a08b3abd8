"""Fixtures of the prediction tests."""

from collections.abc import Callable
from typing import Any

import pytest

from eulerlora import EulerLoRA
from tests.service.harness import PipelineHarness

Open = Callable[..., Any]


@pytest.fixture
def harness(model) -> Open:
    """(*extensions, of=model, **settings) -> a context of a pipeline harness."""

    def build(*extensions: Any, of: EulerLoRA = model, **settings: Any) -> Any:
        return PipelineHarness(of, extensions, settings).running()

    return build
