"""Reproduction of tables of results."""
