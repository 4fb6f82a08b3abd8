"""The optimisation loop and its state."""
