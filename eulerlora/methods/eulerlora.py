"""The paper's method: coefficients of `eulerlora.sampling.masks` at all projections."""

from typing import Literal

from torch import Generator

from eulerlora.nn.method import Method, MethodSettings, RowDraws, changed_settings
from eulerlora.sampling.masks import (
    AdapterSettings,
    draw_balanced_trajectories,
    draw_trajectories,
)


class EulerLoRASettings(MethodSettings):
    """The paper's method, and LoRA or LoRA-Ensemble with min_rank = rank."""

    name: Literal["eulerlora"] = "eulerlora"
    """The method."""


class EulerLoRAMethod(Method[EulerLoRASettings]):
    """The paper's coefficients."""

    settings_type = EulerLoRASettings

    @classmethod
    def is_sampled(cls, adapters: AdapterSettings) -> bool:
        return adapters.min_rank < adapters.rank

    @classmethod
    def label(cls, adapters: AdapterSettings) -> str:
        """Without draws, the method is LoRA or LoRA-Ensemble."""
        if cls.is_sampled(adapters):
            return "EulerLoRA"
        return "LoRA" if adapters.adapters == 1 else "LoRA-Ensemble"

    @classmethod
    def law_text(cls, settings: MethodSettings, adapters: AdapterSettings) -> str:
        if not cls.is_sampled(adapters):
            return "not sampled"
        law = f"Kmin {adapters.min_rank}, T {adapters.steps}, sigma {adapters.scale:g}"
        return ", ".join([law, *changed_settings(settings)])

    def sample(self, samples: int, generator: Generator) -> RowDraws:
        count = self.adapters.adapters * samples
        return RowDraws.of_coefficients(
            draw_trajectories(count, self.depth, self.adapters, generator)
        )

    def sample_balanced(self, first: int, samples: int, generator: Generator) -> RowDraws:
        return RowDraws.of_coefficients(
            draw_balanced_trajectories(samples, self.depth, self.adapters, generator, first)
        )
