"""The laboratory: methods to compare with, studies, tables and benchmarks of EulerLoRA."""
