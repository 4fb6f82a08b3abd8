"""Checkpoints as files: config, tensors, backbone, known answer, the Hub."""
