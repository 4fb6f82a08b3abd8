"""The EulerLoRA prediction service."""
