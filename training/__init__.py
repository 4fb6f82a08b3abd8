"""Training, evaluation and calibration of EulerLoRA checkpoints."""
