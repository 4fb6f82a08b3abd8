"""The implementations that are compared: EulerLoRA and its baselines."""
