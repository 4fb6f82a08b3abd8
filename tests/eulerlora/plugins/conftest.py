"""Tiny checkpoints, as for the exchange with other libraries."""

from tests.eulerlora.exchange.conftest import make_checkpoint

__all__ = ["make_checkpoint"]
