"""Compared methods, found through the entry points of the group `eulerlora.methods`."""
