"""EulerLoRA as a method of PEFT (extra `peft`), described in `eulerlora.plugins.peft_method`.

Importing this module registers the method with PEFT.
"""

from eulerlora.plugins.peft_method import EulerLoraConfig, draw_coefficients, sampling

__all__ = ["EulerLoraConfig", "draw_coefficients", "sampling"]
