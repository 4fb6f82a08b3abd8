"""The command-line interface of training."""
