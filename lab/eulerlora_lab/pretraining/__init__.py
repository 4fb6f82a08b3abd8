"""Pretraining of backbones."""
